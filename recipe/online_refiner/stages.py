"""What this extension does with a step's rows, in the order of a step. The driver's part: metadata and numbers."""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY

from recipe.online_refiner import metrics as metric_names
from recipe.online_refiner import queue
from recipe.online_refiner.advice import copying
from recipe.online_refiner.blocks import CRITIC_ESTIMATORS, RefinementConfig
from recipe.online_refiner.constraint import kl_to_reference
from recipe.online_refiner.credit import CREDITS
from recipe.online_refiner.eta import SCHEDULES
from recipe.online_refiner.groups import Member, dead_groups, weights_of_pairs
from recipe.online_refiner.megatron import rows_multiple
from recipe.online_refiner.records import choose
from recipe.online_refiner.rollout import Outcome, group_of
from recipe.online_refiner.step import StepState
from recipe.online_refiner.worker_group import RefineWorkers
from refiner_worker.client import RefinerClient

logger = logging.getLogger(__name__)
ETA_FILE = "constraint.json"
"""Of a checkpoint: the state of an adaptive eta."""


class Stages:
    """The stages of a step; the workers hold the bulk data, schedules of eta count the run's steps."""

    def __init__(
        self, config: DictConfig, blocks: RefinementConfig, workers: RefineWorkers, total_training_steps: int
    ) -> None:
        """Start eta's schedule."""
        self._config, self._blocks, self._workers = config, blocks, workers
        self._eta = SCHEDULES[blocks.constraint.eta_schedule](blocks.constraint, total_training_steps)

    def load(self, checkpoint: Path) -> None:
        """Go on with the state of a checkpoint's folder; one without such a state starts anew."""
        self._eta.load(checkpoint / ETA_FILE)

    def save(self, checkpoint: Path) -> None:
        """Write the state into a checkpoint's folder, and wait for the records of the steps before it."""
        self._eta.save(checkpoint / ETA_FILE)
        self._workers.finish()

    def see_rollouts(self, batch: KVBatchMeta, state: StepState, rollout_s: float) -> None:
        """Measure the rollouts; ``rollout_s`` are the seconds of the rollout stage."""
        state.rows = queue.real_rows(batch)
        rewards = queue.read_rewards(queue.rows_of(batch, state.rows))
        state.rewards = {row: reward for row, (reward, _) in zip(state.rows, rewards, strict=True)}
        by_key = {batch.keys[row]: reward for row, reward in state.rewards.items()}
        is_by_reward = OmegaConf.select(self._config, "algorithm.filter_groups.metric") == "reward"
        filtered = state.metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY, {}) if is_by_reward else {}
        num_wanted = state.share(self._config.data.train_batch_size) * self._config.actor_rollout_ref.rollout.n
        state.metrics.update(
            {
                **metric_names.zeros(),
                **metric_names.reward_metrics(by_key, filtered),
                **metric_names.sandbox_metrics([info for _, info in rewards], rollout_s),
                "refiner/num_rollouts": len(state.rows),
                "reward/num_lost": max(0, num_wanted - len(state.rows)),
                "tokens/rollout": sum(batch.tags[row]["response_len"] for row in state.rows),
                "tokens/update_actor": sum(tag["seq_len"] for tag in batch.tags),
            }
        )

    def refine(self, batch: KVBatchMeta, state: StepState, client: RefinerClient, max_model_len: int) -> None:
        """Refine what is not refined yet: all, or in a streaming run what came from a checkpoint or failed there."""
        padding = set(range(len(batch))) - set(state.rows)
        if padding:
            queue.write_nothing(queue.rows_of(batch, sorted(padding)), "")
        outcomes = {row: queue.outcome_of(batch.tags[row]) for row in state.rows}
        missing = [row for row, outcome in outcomes.items() if outcome is None]
        metrics = metric_names.streaming_metrics([one for one in outcomes.values() if one is not None])
        arguments = (client, max_model_len, self._blocks.constraint)
        found: dict[str, Outcome] = {}
        for part, answer in self._workers.each("refine", queue.rows_of(batch, missing), *arguments):
            if answer is None:  # its worker died
                queue.write_nothing(part, "worker")
                answer = [Outcome(verdict="worker")] * len(part.keys)
            found |= dict(zip(part.keys, answer, strict=True))
        state.outcomes = {row: outcome or found[batch.keys[row]] for row, outcome in outcomes.items()}
        for row in missing:
            batch.tags[row] = queue.with_outcome(batch.tags[row], state.outcomes[row])
        scored = [row for row, outcome in state.outcomes.items() if outcome.is_scored]
        max_distances = state.share(metric_names.MAX_EDIT_DISTANCES)
        measured = queue.rows_of(batch, drawn(batch, scored, max_distances, state.step))
        answers = self._workers.each("edit_distances", measured, attempts=2)
        distances = [distance for _, part in answers for distance in part or []]
        versions = [batch.tags[row]["max_global_steps"] for row in state.used]
        state.metrics.update(metrics | metric_names.stage_metrics(state, distances))
        state.metrics.update(metric_names.staleness_metrics(state.step, versions))
        if warning := copying([state.metrics]):
            logger.warning("step %d: %s", state.step, warning)
        most = self._blocks.records.max_rollouts_per_step
        recorded = choose(state.outcomes, most if most is None else state.share(most), seed=state.step)
        self._workers.record(state.step, state.part, queue.rows_of(batch, recorded))

    def records(self, batch: KVBatchMeta, rows: list[int]) -> list[dict[str, Any]]:
        """Return the records of a few rows, with their texts."""
        parts = self._workers.each("records", queue.rows_of(batch, rows), attempts=2)
        return [record for _, records in parts for record in records or []]

    def score_with_reference(self, batch: KVBatchMeta, state: StepState, client: RefinerClient) -> None:
        """Get log pi_0 of at most ``measure.num_kl_rollouts`` responses, drawn by the step."""
        rows = drawn(batch, state.rows, state.share(self._blocks.num_kl_rollouts), state.step)
        answers = self._workers.each("measure_kl", queue.rows_of(batch, rows), client, attempts=2)
        known = {key for _, keys in answers for key in keys or []}
        state.kl_rows = [row for row in rows if batch.keys[row] in known]
        state.metrics["tokens/kl_ref"] = sum(batch.tags[row]["response_len"] for row in state.kl_rows)

    def score_with_actor(self, batch: KVBatchMeta, state: StepState, actor: Any) -> None:
        """Let the actor compute log pi_theta(a') of used refinements, or of all where their metric is due.

        In mode ``sft`` the update's own forward pass computes it, and this is done where a metric or eta needs it only.
        """
        constraint = self._blocks.constraint
        every = self._blocks.measure.cross_entropy_all_every
        is_due = every > 0 and (state.step - 1) % every == 0
        is_needed = constraint.penalises or constraint.eta_schedule == "adaptive"
        outcomes = state.outcomes.items()
        wanted = [row for row, one in outcomes if (one.is_scored if is_due else one.is_used and is_needed)]
        state.eta = self._eta.at(state.step)
        state.metrics["constraint/eta"] = state.eta
        if wanted:
            rollout = self._config.actor_rollout_ref.rollout
            size = None if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
            rows = queue.select(
                batch,
                wanted,
                num_chunks=max(actor._dispatch_info["actor"]) + 1,  # as verl's _balance_batch counts ranks
                multiple=rows_multiple(self._config.actor_rollout_ref.actor.get("megatron") or {}, size),
                fields=[
                    *("prompts", "responses", "response_mask"),
                    *("refine_start", "refine_kept", "refine_ids", "refine_mask", "refine_used"),
                ],
            )
            rows.extra_info = {"temperature": rollout.temperature, "alignment": constraint.alignment}
            actor.compute_refine_log_prob(rows)
            sums = queue.read(queue.rows_of(batch, wanted), "refine_nll", "refine_divergence")
            state.nll = dict(zip(wanted, sums["refine_nll"].tolist(), strict=True))
            state.divergences = dict(zip(wanted, sums["refine_divergence"].tolist(), strict=True))
        state.members = [member_of(batch, state, row) for row in state.rows]
        if constraint.rescue_dead_groups:
            state.metrics["constraint/num_rescued_groups"] = len(self._rescued(state))
        if is_needed or is_due:
            state.metrics.update(metric_names.constraint_metrics(state, is_due=is_due))
            self._eta.observe(token=state.divergence_per_token, rollout=state.divergence)

    def penalise(self, batch: KVBatchMeta, state: StepState, compute: Callable[..., KVBatchMeta]) -> KVBatchMeta:
        """Compute advantages with the penalty: in the rewards if the estimator has to see it, else in its advantages.

        Args:
            batch: The step's rows.
            state: With the rows that are charged.
            compute: verl's ``_compute_advantage``.
        """
        rescued = self._rescued(state)
        batch = self._charge(batch, state, compute, rescued)
        if rescued:
            rows = [row for row, one in zip(state.rows, state.members, strict=True) if one.group in rescued]
            self._workers.each("silence", queue.rows_of(batch, rows), attempts=2)
        return batch

    def _rescued(self, state: StepState) -> set[str]:
        """Return the dead groups that have a better refinement."""
        if not self._blocks.constraint.rescue_dead_groups or state.eta == 0:
            return set()
        better = {row for row, outcome in state.outcomes.items() if outcome.verdict == "accepted"}
        members = zip(state.rows, state.members, strict=True)
        return dead_groups(state.members) & {one.group for row, one in members if row in better}

    def _charge(
        self, batch: KVBatchMeta, state: StepState, compute: Callable[..., KVBatchMeta], rescued: set[str]
    ) -> KVBatchMeta:
        constraint = self._blocks.constraint
        name = constraint.chosen("credit")
        if name is None or state.eta == 0:
            return compute(batch, metrics=state.metrics)
        members = [
            one._replace(divergence=None, refined_reward=None) if one.group in rescued else one for one in state.members
        ]
        credit, is_solved = CREDITS[name], self._blocks.refiner.is_maximal
        weights = weights_of_pairs(constraint.pair_weights if name != "members" else None, members, is_solved)
        etas = [state.eta * weight for weight in weights]
        rows = zip(state.rows, credit.costs(members), etas, strict=True)
        costs = {row: (cost, eta) for row, cost, eta in rows if cost is not None}
        if not costs:
            return compute(batch, metrics=state.metrics)
        charged = queue.rows_of(batch, list(costs))
        arguments = (name, {batch.keys[row]: cost for row, cost in costs.items()})
        if credit.advantages is None or self._config.algorithm.adv_estimator in CRITIC_ESTIMATORS:
            self._penalise(charged, "rm_scores", *arguments)
            batch = compute(batch, metrics=state.metrics)
            self._workers.each("restore_rewards", charged, attempts=2)
        else:
            batch = compute(batch, metrics=state.metrics)
            self._penalise(charged, "advantages", *arguments)
        num_tokens = sum(batch.tags[row]["response_len"] for row in state.rows)
        if credit.charges:
            state.metrics["constraint/penalty"] = -sum(cost * eta for cost, eta in costs.values()) / num_tokens
        return batch

    def _penalise(self, charged: KVBatchMeta, field: str, *arguments: Any) -> None:
        self._workers.each("keep", charged, field, attempts=2)
        self._workers.each("penalise", charged, field, *arguments, attempts=2)

    def add_to_loss(self, batch: KVBatchMeta, state: StepState) -> None:
        """Tell the actor's workers what the mode adds to the loss."""
        constraint = self._blocks.constraint
        if constraint.imitates and state.eta > 0:
            batch.extra_info.update(
                sft_eta=state.eta,
                sft_token_weights=constraint.chosen("token_weights"),
                sft_normaliser=constraint.chosen("sft_normaliser"),
            )

    def measure_kl(self, batch: KVBatchMeta, state: StepState) -> None:
        """Measure KL(pi_theta || pi_0) on the rows whose log pi_0 is known."""
        is_by_verl = self._blocks.has_reference_worker or self._blocks.measures_kl_by_actor
        if not (self._blocks.measures_kl or is_by_verl):
            return
        name, rows = ("ref_log_prob", state.rows) if is_by_verl else ("kl_ref_log_prob", state.kl_rows)
        state.metrics["kl_ref/k3"] = float("nan")
        if rows:
            data = queue.read_padded(queue.rows_of(batch, rows), "old_log_probs", name, "response_mask")
            state.metrics["kl_ref/k3"] = kl_to_reference(
                log_probs=data["old_log_probs"], ref_log_probs=data[name], response_mask=data["response_mask"]
            )


def member_of(batch: KVBatchMeta, state: StepState, row: int) -> Member:
    """Return what the constraint knows of a rollout."""
    outcome = state.outcomes.get(row)
    group, reward = group_of(batch.keys[row]), state.rewards[row]
    if outcome is None or not outcome.is_used:
        return Member(group=group, reward=reward, divergence=None, num_tokens=0)
    length = min(batch.tags[row]["response_len"] - outcome.start, outcome.num_refined_tokens)
    return Member(
        group=group,
        reward=reward,
        divergence=state.divergences.get(row) if outcome.verdict != "own" else None,
        num_tokens=length - outcome.num_kept_tokens,
        refined_reward=outcome.refined_reward,
    )


def drawn(batch: KVBatchMeta, rows: list[int], max_rows: int, step: int) -> list[int]:
    """Return at most so many rows, drawn by the step; the order of the batch does not matter."""
    rows = sorted(rows, key=batch.keys.__getitem__)
    return rows if len(rows) <= max_rows else random.Random(step).sample(rows, max_rows)
