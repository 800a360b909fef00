"""verl's V1 trainer with a refine stage between reward and log-probs.

One step (stages of this extension in capitals; the rest is verl's own, untouched)::

    dataloader -> rollout (policy) -> reward -> REFINE (pi_0) -> REWARD of a' -> GATE r(a') > r(a)
                                                                                      |
        update actor <- advantage + PENALTY <- values, ref <- old log-probs, LOG PI_THETA(a')
        (or + eta * CROSS-ENTROPY of a', mode sft)

``_balance_batch`` is the hook: there the rollout engines sleep, rewards are known, and rows are padded and in order
(``PPOTrainer._step_once``, verl/trainer/ppo/v1/trainer_base.py).
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from recipe.online_refiner import metrics as metric_names
from recipe.online_refiner.alignment import ALIGNMENTS, counterparts
from recipe.online_refiner.checks import max_positions
from recipe.online_refiner.constraint import (
    charged_log_probs,
    cross_entropy,
    divergence,
    kl_to_reference,
    penalised_advantages,
    token_penalty,
)
from recipe.online_refiner.eta import SCHEDULES
from recipe.online_refiner.plan import make_plan
from recipe.online_refiner.refine_stage import Refiner, Rollout, reference_log_probs, refine_all
from recipe.online_refiner.rows import (
    read,
    read_padded,
    read_rollouts,
    rows_of,
    select,
    write_kl_log_probs,
    write_padded,
    write_refinements,
)
from recipe.online_refiner.run_dir import RunDir
from recipe.online_refiner.schema import CRITIC_ESTIMATORS, RefinementConfig, load
from recipe.online_refiner.scoring import RewardLoopScore
from recipe.online_refiner.workers import RefinerActorWorker
from refiner_worker.group import RefinerGroup

ACTOR_ROLES = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
NUM_RECORDED_PAIRS = 2
"""Accepted pairs of a step whose tokens are recorded with their log-probs."""
REFINE_FIELDS = ("refine_ids", "refine_mask", "refine_accepted", "refine_log_probs")


class OnlineRefinerSync(PPOTrainerSync):
    """The synchronous trainer (``trainer.v1.trainer_mode=sync``): rollout, refiner and actor take turns on the GPUs.

    Args:
        config: The whole config, with the blocks ``refiner`` and ``constraint``.
    """

    def __init__(self, config: DictConfig) -> None:
        """Read the blocks; models are loaded in ``init``."""
        self.blocks: RefinementConfig = load(config)
        self.run_dir = RunDir(config.run_dir)
        self.group: RefinerGroup | None = None
        super().__init__(config)

    # ---- set-up

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in ACTOR_ROLES:
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(RefinerActorWorker)

    def _setup(self) -> None:
        super()._setup()  # ends with the rollout engines asleep: their memory is the refiner's to load into
        self.run_dir.forget_after(self.global_steps)
        self.eta = SCHEDULES[self.blocks.constraint.eta_schedule](self.blocks.constraint, self.total_training_steps)
        self.eta.load(self._checkpoint_folder(resumed=True) / "constraint.json")
        if not self.blocks.hosts_refiner:
            return
        plan = make_plan(
            self.config,
            self.blocks,
            tokenizer=self.tokenizer,
            max_positions=max_positions(self.blocks.refiner.model_path),
        )
        self.group = RefinerGroup(
            refiner=self.blocks.refiner,
            rollout=plan.refiner_rollout,
            pool=self.resource_pool_manager.resource_pool_dict["global_pool"],
            gpus_per_node=self.config.trainer.n_gpus_per_node,
        )
        self.refiner = Refiner(
            config=self.blocks.refiner,
            constraint=self.blocks.constraint,
            client=self.group.client(),
            prompt=plan.prompt,
            score=RewardLoopScore(self.get_reward_handles()),
            max_model_len=plan.max_model_len,
        )

    # ---- one step

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict, **kwargs: Any) -> KVBatchMeta:
        batch = super()._balance_batch(batch, metrics=metrics, **kwargs)
        rollouts = read_rollouts(batch)
        metrics.update(metric_names.zeros())
        metrics.update(metric_names.reward_metrics(rollouts))
        metrics["refiner/num_rollouts"] = len(rollouts)
        metrics["tokens/rollout"] = sum(len(rollout.response_ids) for rollout in rollouts)
        metrics["tokens/update_actor"] = sum(tag["seq_len"] for tag in batch.tags)
        if self.group is None:
            return batch
        with marked_timer("refine", self.timing_raw):
            metrics["refiner/num_restarts"] = self.group.wake_up()
            self.refiner.client = self.group.client()
            if self.blocks.refines:
                self._refine(batch, rollouts, metrics)
        with marked_timer("kl_ref", self.timing_raw):
            if self.blocks.measures_kl:
                self._score_with_reference(batch, rollouts, metrics)
        with marked_timer("refine", self.timing_raw):
            self.group.sleep()
        return batch

    def _refine(self, batch: KVBatchMeta, rollouts: list[Rollout], metrics: dict) -> None:
        result = asyncio.run(refine_all(self.refiner, rollouts, seed=self.global_steps))
        write_refinements(batch, result)
        metrics.update(metric_names.stage_metrics(result))
        self.run_dir.append_refinements(self.global_steps, result)

    def _score_with_reference(self, batch: KVBatchMeta, rollouts: list[Rollout], metrics: dict) -> None:
        num_chosen = min(len(rollouts), self.blocks.refiner.num_kl_rollouts or len(rollouts))
        chosen = random.Random(self.global_steps).sample(range(len(rollouts)), num_chosen)
        found = asyncio.run(reference_log_probs(self.refiner.client, [rollouts[index] for index in chosen]))
        by_rollout = dict(zip(chosen, found, strict=True))
        write_kl_log_probs(batch, [by_rollout.get(index) for index in range(len(rollouts))])
        metrics["tokens/kl_ref"] = sum(len(row) for row in found if row is not None)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics=metrics)
        if self.blocks.refines:
            with marked_timer("refine_log_prob", self.timing_raw):
                self._score_refinements(batch)
        return batch

    def _score_refinements(self, batch: KVBatchMeta) -> None:
        """Let the actor compute log pi_theta(a') of the accepted refinements, or of all where their metric is due."""
        every = self.blocks.constraint.cross_entropy_all_every
        self.scores_all = every > 0 and (self.global_steps - 1) % every == 0
        found = read_padded(batch, "refine_mask", "refine_accepted")
        wanted = found["refine_mask"][:, 0] if self.scores_all else found["refine_accepted"]
        self.scored_rows = wanted.nonzero().flatten().tolist()
        if not self.scored_rows:
            return
        rollout = self.config.actor_rollout_ref.rollout
        scoring = select(
            batch,
            self.scored_rows,
            num_chunks=max(self.actor_rollout_wg._dispatch_info["actor"]) + 1,  # as verl's _balance_batch counts ranks
            multiple=1 if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu,
            fields=["prompts", "refine_ids", "refine_mask"],
        )
        scoring.extra_info = {"temperature": rollout.temperature}
        self.actor_rollout_wg.compute_refine_log_prob(scoring)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if self.blocks.refines:
            self.step_eta = self.eta.at(self.global_steps)
            metrics["constraint/eta"] = self.step_eta
            charged = self._charge(batch, metrics)
            self.eta.observe(metrics["constraint/divergence"])
            penalty = token_penalty(charged, self.step_eta)
        if self.blocks.constraint.mode == "penalty" and penalty.any():
            batch = self._penalise(batch, metrics, penalty)
        else:
            batch = super()._compute_advantage(batch, metrics=metrics)
        self._record_kl(batch, metrics)
        return batch

    def _charge(self, batch: KVBatchMeta, metrics: dict) -> torch.Tensor:
        """Return the log-probs that Eq. 6 sums, (B, T), all 0 if nothing was accepted; measure them."""
        charged = torch.zeros(len(batch), max(tag["response_len"] for tag in batch.tags))
        if not self.scored_rows:
            return charged
        data = read(rows_of(batch, self.scored_rows), "responses", "response_mask", *REFINE_FIELDS)
        accepted = data["refine_accepted"].bool()
        pairs = counterparts(
            ALIGNMENTS[self.blocks.constraint.alignment],
            [row.tolist() for row in data["responses"].unbind()],
            [row.tolist() for row in data["refine_ids"].unbind()],
            accepted.tolist(),
        )
        self._record_tokens(batch, [row for row, keep in zip(self.scored_rows, accepted, strict=True) if keep])
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
        return charged

    def _penalise(self, batch: KVBatchMeta, metrics: dict, penalty: torch.Tensor) -> KVBatchMeta:
        """Compute advantages with the penalty: in the rewards if a critic has to see it, else in verl's advantages."""
        if self.config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
            scores = read_padded(batch, "rm_scores")["rm_scores"]
            write_padded(batch, rm_scores=scores + penalty)  # verl reads its token-level rewards from this field
            batch = super()._compute_advantage(batch, metrics=metrics)
            write_padded(batch, rm_scores=scores)
            response_mask = read_padded(batch, "response_mask")["response_mask"]
        else:
            batch = super()._compute_advantage(batch, metrics=metrics)
            data = read_padded(batch, "advantages", "response_mask")
            response_mask = data["response_mask"]
            write_padded(batch, advantages=penalised_advantages(**data, penalty=penalty))
        metrics["constraint/penalty"] = (penalty.sum() / response_mask.sum().clamp(min=1)).item()
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        constraint = self.blocks.constraint
        if constraint.mode == "sft" and self.step_eta > 0:
            batch.extra_info.update(
                sft_eta=self.step_eta,
                sft_token_weights=constraint.token_weights,
                sft_kept_weight=constraint.kept_weight,
            )
        return super()._update_actor(batch, metrics=metrics)

    def _record_kl(self, batch: KVBatchMeta, metrics: dict) -> None:
        name = "ref_log_prob" if self.blocks.has_reference_worker else "kl_ref_log_prob"
        if not (self.blocks.measures_kl or self.blocks.has_reference_worker):
            return
        data = read_padded(batch, "old_log_probs", name, "response_mask")
        known = data["response_mask"] * data[name].isfinite()
        metrics["kl_ref/k3"] = kl_to_reference(
            log_probs=data["old_log_probs"], ref_log_probs=data[name], response_mask=known
        )

    # ---- records

    def _record_tokens(self, batch: KVBatchMeta, accepted_rows: list[int]) -> None:
        chosen = rows_of(batch, accepted_rows[:NUM_RECORDED_PAIRS])
        if not chosen.keys:
            return
        names = {"response": ("responses", "old_log_probs"), "refined": ("refine_ids", "refine_log_probs")}
        data = read(chosen, *(field for fields in names.values() for field in fields))
        pairs: list[dict[str, Any]] = [{"key": key} for key in chosen.keys]
        for name, fields in names.items():
            for pair, ids, log_probs in zip(pairs, *(data[field].unbind() for field in fields), strict=True):
                tokens = zip(ids.tolist(), log_probs.tolist(), strict=True)
                pair[name] = [[self.tokenizer.decode([token]), round(log_prob, 4)] for token, log_prob in tokens]
        self.run_dir.append_tokens(self.global_steps, pairs)

    def _checkpoint_folder(self, *, resumed: bool = False) -> Path:
        trainer = self.config.trainer
        if resumed and trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _save_checkpoint(self) -> None:
        self.eta.save(self._checkpoint_folder() / "constraint.json")  # before verl names this checkpoint the latest
        super()._save_checkpoint()

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, **kwargs: Any) -> None:
        # verl's own timer of the stage that ours stands in counts it as well.
        timing_raw["old_log_prob"] -= timing_raw.get("refine_log_prob", 0.0)
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        self.run_dir.append_metrics(kwargs["global_steps"], metrics)
