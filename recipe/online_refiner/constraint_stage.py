"""The dynamic constraint on a step's rows: log pi_theta(a') -> Eq. 6 -> advantages, or what the actor's loss adds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from recipe.online_refiner.alignment import ALIGNMENTS, counterparts
from recipe.online_refiner.blocks import CRITIC_ESTIMATORS, ConstraintConfig
from recipe.online_refiner.constraint import (
    charged_log_probs,
    cross_entropy,
    divergence,
    penalised_advantages,
    token_penalty,
)
from recipe.online_refiner.eta import SCHEDULES
from recipe.online_refiner.rows import read, read_padded, rows_of, select, write_padded

REFINE_FIELDS = ("refine_ids", "refine_mask", "refine_accepted", "refine_log_probs")


class ConstraintStage:
    """What the refinements of a step do to its rows.

    Args:
        config: The whole config.
        constraint: Its block ``constraint``.
        total_training_steps: Of the run, for schedules of eta.
    """

    def __init__(self, config: DictConfig, constraint: ConstraintConfig, total_training_steps: int) -> None:
        """Nothing is scored yet."""
        self.config = config
        self.constraint = constraint
        self.schedule = SCHEDULES[constraint.eta_schedule](constraint, total_training_steps)
        self.eta = 0.0
        self.scores_all = False
        self.scored_rows: list[int] = []

    def load(self, checkpoint: Path) -> None:
        """Go on with the state of a checkpoint's folder; one without such a state starts anew."""
        self.schedule.load(checkpoint / "constraint.json")

    def save(self, checkpoint: Path) -> None:
        """Write the state into a checkpoint's folder."""
        self.schedule.save(checkpoint / "constraint.json")

    def score(self, batch: KVBatchMeta, actor: Any, step: int) -> None:
        """Let the actor compute log pi_theta(a') of the accepted refinements, or of all where their metric is due.

        Args:
            batch: The step's rows, refinements written.
            actor: Worker group of :class:`~recipe.online_refiner.workers.RefinerActorWorker`.
            step: Of the run, from 1.
        """
        every = self.constraint.cross_entropy_all_every
        self.scores_all = every > 0 and (step - 1) % every == 0
        found = read_padded(batch, "refine_mask", "refine_accepted")
        wanted = found["refine_mask"][:, 0] if self.scores_all else found["refine_accepted"]
        self.scored_rows = wanted.nonzero().flatten().tolist()
        if not self.scored_rows:
            return
        rollout = self.config.actor_rollout_ref.rollout
        scoring = select(
            batch,
            self.scored_rows,
            num_chunks=max(actor._dispatch_info["actor"]) + 1,  # as verl's _balance_batch counts ranks
            multiple=1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu,
            fields=["prompts", "refine_ids", "refine_mask"],
        )
        scoring.extra_info = {"temperature": rollout.temperature}
        actor.compute_refine_log_prob(scoring)

    def charge(self, batch: KVBatchMeta, metrics: dict, step: int) -> tuple[torch.Tensor, list[int]]:
        """Return the token penalty, (B, T), all 0 if nothing was accepted, and the accepted rows; measure them."""
        self.eta = self.schedule.at(step)
        metrics["constraint/eta"] = self.eta
        charged = torch.zeros(len(batch), max(tag["response_len"] for tag in batch.tags))
        accepted_rows: list[int] = []
        if self.scored_rows:
            data = read(rows_of(batch, self.scored_rows), "responses", "response_mask", *REFINE_FIELDS)
            accepted = data["refine_accepted"].bool()
            accepted_rows = [row for row, keep in zip(self.scored_rows, accepted, strict=True) if keep]
            pairs = counterparts(
                ALIGNMENTS[self.constraint.alignment],
                [row.tolist() for row in data["responses"].unbind()],
                [row.tolist() for row in data["refine_ids"].unbind()],
                accepted.tolist(),
            )
            data = data.to_padded_tensor(0)
            refined = {"refine_log_probs": data["refine_log_probs"].float(), "refine_mask": data["refine_mask"]}
            charged[self.scored_rows, : pairs.shape[1]] = charged_log_probs(
                refine_log_probs=refined["refine_log_probs"], counterparts=pairs, response_mask=data["response_mask"]
            )
            all_rows = torch.full_like(accepted, self.scores_all)
            metrics.update(
                {
                    "constraint/cross_entropy_all": cross_entropy(**refined, rows=all_rows),
                    "constraint/cross_entropy_accepted": cross_entropy(**refined, rows=accepted),
                    "constraint/divergence": divergence(charged, metrics["refiner/num_rollouts"]),
                    "tokens/refine_log_prob": data["refine_mask"].sum().item(),
                }
            )
        self.schedule.observe(metrics["constraint/divergence"])
        return token_penalty(charged, self.eta), accepted_rows

    def penalise(
        self, batch: KVBatchMeta, metrics: dict, penalty: torch.Tensor, compute: Callable[..., KVBatchMeta]
    ) -> KVBatchMeta:
        """Compute advantages with the penalty: in the rewards if a critic has to see it, else in verl's advantages.

        Args:
            batch: The step's rows.
            metrics: Of the step.
            penalty: (B, T) of :meth:`charge`.
            compute: verl's ``_compute_advantage``.
        """
        if self.config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
            scores = read_padded(batch, "rm_scores")["rm_scores"]
            write_padded(batch, rm_scores=scores + penalty)  # verl reads its token-level rewards from this field
            batch = compute(batch, metrics=metrics)
            write_padded(batch, rm_scores=scores)
            response_mask = read_padded(batch, "response_mask")["response_mask"]
        else:
            batch = compute(batch, metrics=metrics)
            data = read_padded(batch, "advantages", "response_mask")
            response_mask = data["response_mask"]
            write_padded(batch, advantages=penalised_advantages(**data, penalty=penalty))
        metrics["constraint/penalty"] = (penalty.sum() / response_mask.sum().clamp(min=1)).item()
        return batch

    def add_to_loss(self, batch: KVBatchMeta) -> None:
        """Tell the actor's workers what mode ``sft`` adds to the loss."""
        if self.constraint.mode == "sft" and self.eta > 0:
            batch.extra_info.update(
                sft_eta=self.eta,
                sft_token_weights=self.constraint.token_weights,
                sft_kept_weight=self.constraint.kept_weight,
            )
