"""The driver's stages of a step, in their order. The driver sees metadata and numbers; texts stay with the workers."""

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY

from recipe.online_refiner import metric_names, metrics
from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.method.eta import Eta
from recipe.online_refiner.method.pairs import Pair, Verdict, choose_shown, group_of, luck
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.refine.budget import Budget, Rollouts
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue.actor_worker import SCORED_COLUMNS
from recipe.online_refiner.verl_glue.charges import Charges
from recipe.online_refiner.verl_glue.refine_actors import RefineWorkers
from recipe.runs.files import BUDGET_FILE, ETA_FILE
from refiner_worker.client import RefinerClient


class Stages:
    """The stages of a step. Texts stay with the workers."""

    def __init__(self, config: DictConfig, blocks: RefinementConfig, workers: RefineWorkers) -> None:
        self._config, self._blocks, self._workers = config, blocks, workers
        self._temperature = config.actor_rollout_ref.rollout.temperature
        self._eta = Eta(blocks.constraint)
        self.charges = Charges(config, blocks)
        """The penalty of the run's mode."""
        share = blocks.refiner.budget if blocks.refines else None
        self._budget = None if share is None else Budget(share=share)
        self.num_sessions: dict[str, int] = {}
        """The number of sessions, by uid, of prompts whose row in the data set says so (verl's ``__rollout_n__``)."""
        self._began_at = time.time()

    def load(self, checkpoint: Path) -> None:
        """Load the state from a checkpoint's folder; state that the folder lacks starts again."""
        if not checkpoint.is_dir():
            return
        self._eta.load(checkpoint / ETA_FILE)
        if self._budget is not None:
            self._budget.load(checkpoint / BUDGET_FILE)

    def save(self, checkpoint: Path) -> None:
        """Write the state into a checkpoint's folder."""
        self._eta.save(checkpoint / ETA_FILE)
        if self._budget is not None:
            self._budget.save(checkpoint / BUDGET_FILE)

    def num_wanted(self, batch: KVBatchMeta, state: StepState) -> int:
        """Return the number of rollouts that a step or mini-batch should have, from its rows without padding."""
        n = int(self._config.actor_rollout_ref.rollout.n)
        groups = {group_of(key) for key in batch.keys}
        num_lost = max(0, state.share(self._config.data.train_batch_size) - len(groups))
        return sum(self.num_sessions.get(group, n) for group in groups) + num_lost * n

    def see_rollouts(self, batch: KVBatchMeta, state: StepState) -> None:
        """Measure the rollouts, and begin a pair for each."""
        rows = queue.real_rows(batch)
        real = queue.rows_of(batch, rows)
        sources = queue.read_sources(real) if self._blocks.differs_by_source else [""] * len(rows)
        read = zip(rows, queue.read_rewards(real), sources, strict=True)
        state.pairs = {row: Pair(reward=reward, source=str(source)) for row, reward, source in read}
        by_key = {batch.keys[row]: pair.reward for row, pair in state.pairs.items()}
        is_by_reward = OmegaConf.select(self._config, "algorithm.filter_groups.metric") == "reward"
        filtered = Counter(state.filtered) + Counter(state.metrics.get(DAPO_FILTERED_REWARD_COUNTS_KEY, {}))
        num_discarded = state.metrics.get(metric_names.DISCARDED, 0)
        said = self._workers.numbers(real)
        state.counts |= metrics.num_saying(said)
        state.metrics.update(
            {
                **metrics.zeros(),
                **metrics.reward_metrics(by_key, filtered if is_by_reward else {}, num_discarded),
                **metrics.extra_metrics(said),
                metric_names.NUM_ROLLOUTS: len(rows),
                metric_names.NUM_LOST: max(0, self.num_wanted(real, state) - len(rows)),
                metric_names.TOKENS_ROLLOUT: sum(batch.tags[row]["response_len"] for row in rows),
                metric_names.TOKENS_UPDATE_ACTOR: sum(tag["seq_len"] for tag in batch.tags),
            }
        )

    def refine(self, batch: KVBatchMeta, state: StepState, client: RefinerClient, max_model_len: int) -> None:
        """Refine rows that are not refined yet: all rows, or in a streaming run the rows that a checkpoint restored."""
        constraint = self._blocks.constraint
        if padding := sorted(set(range(len(batch))) - set(state.pairs)):
            queue.write_nothing(queue.rows_of(batch, padding), [Pair(reward=0.0) for _ in padding], constraint)
        if self._budget is not None:
            rollouts = budget_rollouts(batch, state, self._blocks)
            chosen = self._budget.choose(rollouts)
            state.metrics[metric_names.BUDGET_KEPT] = self._budget.kept(rollouts, chosen)
            state.counts[metric_names.BUDGET_KEPT] = self._budget.expected(rollouts)
            for row in state.pairs:
                batch.tags[row][queue.OVER_BUDGET] = row not in chosen
        known = {row: pair for row in state.pairs if (pair := queue.pair_of(batch.tags[row])) is not None}
        restored = [row for row, pair in known.items() if pair.started_at < self._began_at]
        if restored and not queue.has_columns_of(constraint, queue.rows_of(batch, restored)):  # of another constraint
            self._lose(batch, state, restored)
        if missing := [row for row in state.pairs if row not in known]:
            self._refine_missing(batch, state, missing, client, max_model_len)
        found = {row: queue.pair_of(batch.tags[row]) for row in state.pairs}
        # A checkpoint's rows may come from a run in which nothing differed by source.
        state.pairs = {row: replace(one, source=state.pairs[row].source) for row, one in found.items() if one}
        if self._budget is not None:
            self._budget.observe(rollouts, {row: state.pairs[row] for row in chosen})
        recent = [pair for row, pair in known.items() if row not in restored]
        state.metrics.update(metrics.streaming_metrics(recent, state.started_at))
        state.metrics.update(metrics.refine_metrics(state))
        state.metrics.update(metrics.declared(constraint, constraint.pair_metrics(list(state.pairs.values()))))
        self._record(batch, state)

    def _refine_missing(
        self, batch: KVBatchMeta, state: StepState, rows: list[int], client: RefinerClient, max_model_len: int
    ) -> None:
        """Let refine workers refine rows; a row whose worker died has no refinement."""
        if not self._blocks.is_shared:  # its servers sleep by now, and a request would wait for them
            self._workers.refine(queue.rows_of(batch, rows), client, max_model_len)
            queue.read_tags(batch, rows)
        if lost := [row for row in rows if queue.pair_of(batch.tags[row]) is None]:
            self._lose(batch, state, lost)

    def _lose(self, batch: KVBatchMeta, state: StepState, rows: list[int]) -> None:
        """Write rows as rows without a refinement, whatever they had."""
        nothing = [replace(state.pairs[row], verdict=Verdict.WORKER) for row in rows]
        queue.write_nothing(queue.rows_of(batch, rows), nothing, self._blocks.constraint)
        queue.read_tags(batch, rows)

    def _record(self, batch: KVBatchMeta, state: StepState) -> None:
        """Choose the rows that are shown, and let refine workers write all responses of the step to the run's files."""
        luck_of = {row: luck(state.step, batch.keys[row]) for row in state.pairs}
        state.shown = [] if state.part else choose_shown(state.pairs, luck_of)
        if self._blocks.constraint.imitation is not None:
            queue.write_shown(batch, state.shown)
        shown = {batch.keys[row] for row in state.shown}
        self._workers.record(state.step, state.part, queue.rows_of(batch, sorted(state.pairs)), shown)

    def score_with_reference(self, batch: KVBatchMeta, state: StepState, client: RefinerClient) -> None:
        """Get log pi_0 of at most ``measure.num_kl_rollouts`` responses, drawn at random with the step as seed."""
        rows = sorted(state.pairs, key=batch.keys.__getitem__)
        most = state.share(self._blocks.num_kl_rollouts)
        rows = rows if len(rows) <= most else random.Random(state.step).sample(rows, most)
        known = self._workers.score_with_reference(queue.rows_of(batch, rows), client)
        state.kl_rows = [row for row in rows if batch.keys[row] in known]

    def score_with_actor(self, batch: KVBatchMeta, state: StepState, actor: Any) -> None:
        """Let the actor compute log pi_theta(a') of used refinements, or of all refinements in steps that measure it.

        In mode ``sft``, the update's own forward pass computes it, so this is done only if a metric or eta needs it.
        """
        constraint = self._blocks.constraint
        every = self._blocks.measure.cross_entropy_all_every
        is_due = every > 0 and (state.step - 1) % every == 0
        is_needed = constraint.needs_log_probs
        pairs = state.pairs.items()
        wanted = [row for row, pair in pairs if (pair.verdict.is_scored if is_due else pair.is_used and is_needed)]
        state.eta = self._eta.value
        state.metrics[metric_names.ETA] = state.eta
        for source in constraint.by_source or ():
            state.metrics[metric_names.ETA_OF + source] = state.eta * constraint.scale(source)
        if wanted:
            actor.compute_refine_log_prob(queue.for_actor(batch, wanted, actor, SCORED_COLUMNS, self._temperature))
            sums = queue.read(queue.rows_of(batch, wanted), "refine_nll", "refine_divergence")
            columns = (sums[name].tolist() for name in ("refine_nll", "refine_divergence"))
            for row, nll, divergence in zip(wanted, *columns, strict=True):
                state.pairs[row].nll = nll
                state.pairs[row].divergence = divergence
        if constraint.rescues:
            state.metrics[metric_names.NUM_RESCUED_GROUPS] = len(state.rescued(constraint))
        penalty = constraint.penalty
        if penalty is not None:
            self.charges.measure(penalty, batch, state, actor)
        if is_needed or is_due or penalty is not None:
            state.metrics.update(metrics.constraint_metrics(state, is_due=is_due))

    def measure_kl(self, batch: KVBatchMeta, state: StepState) -> None:
        """Measure KL(pi_theta || pi_0) on the rows of which log pi_0 is known."""
        is_by_verl = self._blocks.has_reference_worker or self._blocks.measures_kl_by_actor
        if not (self._blocks.measures_kl or is_by_verl):
            return
        name, rows = ("ref_log_prob", [*state.pairs]) if is_by_verl else ("kl_ref_log_prob", state.kl_rows)
        state.metrics[metric_names.KL_REF], state.counts[metric_names.KL_REF] = float("nan"), 0
        state.metrics[metric_names.TOKENS_KL_REF] = sum(batch.tags[row]["response_len"] for row in rows)
        if rows:
            data = queue.read_padded(queue.rows_of(batch, rows), "old_log_probs", name, "response_mask")
            state.counts[metric_names.KL_REF] = int(data["response_mask"].sum())
            state.metrics[metric_names.KL_REF] = metrics.kl_to_reference(
                log_probs=data["old_log_probs"], ref_log_probs=data[name], response_mask=data["response_mask"]
            )

    def adapt_eta(self, parts: list[StepState]) -> None:
        """Let eta follow a step's D: one dual step a step.

        D is the mean over all rollouts of all its mini-batches, of which those without a used refinement count as 0.
        All of them had the same eta, and log pi_theta(a') under the same weights.
        """
        per_token = [part.measured(row).per_token for part in parts for row in part.pairs]
        if per_token:
            self._eta.observe(sum(per_token) / len(per_token))

    def of_step(self, parts: list[StepState]) -> dict[str, float]:
        """Return the metrics of a step that has several mini-batches, with the metrics of the run's constraint."""
        return metrics.of_step(parts, self._blocks.constraint.MEANING)

    def record_tokens(self, batch: KVBatchMeta, state: StepState, actor: Any) -> None:
        """Let workers record the numbers of each token of the shown rows after the update, without waiting."""
        seen: dict[str, list[float]] = {}
        if self._blocks.constraint.imitation is not None:
            for of_rank in actor.take_shown_log_probs():
                seen |= {batch.keys[state.shown[number - 1]]: values for number, values in of_rank.items()}
        if state.shown:
            paying = {batch.keys[row] for row in state.paying(self._blocks.constraint, self.charges.place)}
            self._workers.record_tokens(state.step, queue.rows_of(batch, state.shown), seen, paying, state.eta)


def budget_rollouts(batch: KVBatchMeta, state: StepState, blocks: RefinementConfig) -> Rollouts:
    """Return the rollouts as the budget reads them, by the refiner and the weight of each row's data source."""
    pairs, groups = state.pairs, {row: group_of(batch.keys[row]) for row in state.pairs}
    refiners = {row: blocks.refiner.sources.get(pair.source, blocks.refiner) for row, pair in pairs.items()}
    unweighted = [row for row, pair in pairs.items() if not blocks.constraint.is_refined(pair.source)]
    solved = {row for row, pair in pairs.items() if refiners[row].is_maximal(pair.reward)}
    most = {groups[row]: one.max_refinements_per_group for row, one in refiners.items()}
    return Rollouts(
        rewards={row: pair.reward for row, pair in pairs.items()},
        groups=groups,
        step=state.step,
        keys=dict(enumerate(batch.keys)),
        solved=solved,
        num_tokens=sum(batch.tags[row]["response_len"] for row in pairs),
        most=most | {groups[row]: 0 for row in (*unweighted, *(row for row in solved if refiners[row].only_unsolved))},
    )
