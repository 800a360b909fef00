"""The driver's stages of a step, in their order. The driver sees metadata and numbers; texts stay with the workers."""

import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY

from recipe.online_refiner import metric_names, metrics
from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.method.eq6 import penalty_inputs, since
from recipe.online_refiner.method.eta import Eta
from recipe.online_refiner.method.in_place import InPlacePenalty
from recipe.online_refiner.method.pairs import Divergence, Pair, Verdict, choose_shown, group_of, luck
from recipe.online_refiner.method.penalty import Eq6Penalty, PenaltyPart, Place
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.refine.budget import Budget, Rollouts
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue.actor_worker import IN_PLACE_COLUMNS, SCORED_COLUMNS
from recipe.online_refiner.verl_glue.refine_actors import RefineWorkers
from recipe.runs.files import BUDGET_FILE, ETA_FILE
from refiner_worker.client import RefinerClient


class Stages:
    """The stages of a step. Texts stay with the workers."""

    def __init__(self, config: DictConfig, blocks: RefinementConfig, workers: RefineWorkers) -> None:
        self._config, self._blocks, self._workers = config, blocks, workers
        self._eta = Eta(blocks.constraint)
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
        state.pairs = {row: Pair(reward=reward) for row, reward in zip(rows, queue.read_rewards(real), strict=True)}
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
            rollouts = self._rollouts(batch, state)
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
        state.pairs = {row: pair for row, pair in found.items() if pair is not None}
        if self._budget is not None:
            self._budget.observe(rollouts, {row: state.pairs[row] for row in chosen})
        recent = [pair for row, pair in known.items() if row not in restored]
        state.metrics.update(metrics.streaming_metrics(recent, state.started_at))
        state.metrics.update(metrics.refine_metrics(state))
        state.metrics.update(constraint.pair_metrics(list(state.pairs.values())))
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

    def _rollouts(self, batch: KVBatchMeta, state: StepState) -> Rollouts:
        """Return the rollouts as the budget reads them, by the refiner of each row's data source."""
        pairs, groups = state.pairs, {row: group_of(batch.keys[row]) for row in state.pairs}
        refiners = dict.fromkeys(pairs, self._blocks.refiner)
        if sources := self._blocks.refiner.sources:
            names = queue.read_sources(queue.rows_of(batch, pairs))
            refiners = {row: sources.get(str(name), refiners[row]) for row, name in zip(pairs, names, strict=True)}
        solved = {row for row, pair in pairs.items() if refiners[row].is_maximal(pair.reward)}
        most = {groups[row]: refiner.max_refinements_per_group for row, refiner in refiners.items()}
        return Rollouts(
            rewards={row: pair.reward for row, pair in pairs.items()},
            groups=groups,
            step=state.step,
            keys=dict(enumerate(batch.keys)),
            solved=solved,
            num_tokens=sum(batch.tags[row]["response_len"] for row in pairs),
            most=most | {groups[row]: 0 for row in solved if refiners[row].only_unsolved},
        )

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
        if wanted:
            actor.compute_refine_log_prob(self._for_actor(batch, wanted, actor, SCORED_COLUMNS))
            sums = queue.read(queue.rows_of(batch, wanted), "refine_nll", "refine_divergence")
            columns = (sums[name].tolist() for name in ("refine_nll", "refine_divergence"))
            for row, nll, divergence in zip(wanted, *columns, strict=True):
                state.pairs[row].nll = nll
                state.pairs[row].divergence = divergence
        if constraint.rescues:
            state.metrics[metric_names.NUM_RESCUED_GROUPS] = len(state.rescued(constraint))
        penalty = constraint.penalty
        if penalty is not None:
            self._charge(penalty, batch, state, actor)
        if is_needed or is_due or penalty is not None:
            state.metrics.update(metrics.constraint_metrics(state, is_due=is_due))

    def _charge(self, penalty: PenaltyPart, batch: KVBatchMeta, state: StepState, actor: Any) -> None:
        """Set the divergences of the charged rows: D of Eq. 6 from the actor's pass, or by the mode's own charges."""
        rows = {row: pair for row, pair in state.pairs.items() if penalty.is_charged(pair)}
        if isinstance(penalty, Eq6Penalty):
            state.charged = {row: Divergence(pair.divergence, pair.num_compared_tokens) for row, pair in rows.items()}
        elif rows:
            self._charge_tokens(penalty, [*rows], batch, state, actor)

    def _charge_tokens(
        self, penalty: PenaltyPart, rows: list[int], batch: KVBatchMeta, state: StepState, actor: Any
    ) -> None:
        """Compute and write the mode's own charge of each token of some turns (``PenaltyPart.charge``)."""
        if self._blocks.is_shared and isinstance(penalty, InPlacePenalty):  # pi_0 is the actor without its adapter
            actor.compute_in_place_log_prob(self._for_actor(batch, rows, actor, IN_PLACE_COLUMNS))
        some = queue.rows_of(batch, rows)
        data = queue.read_padded(some, *penalty.reads, "response_mask")
        turn_mask = since(torch.tensor([state.pairs[row].start for row in rows]), data["response_mask"])
        charged = penalty.charge(data, turn_mask)
        queue.write_column(some, "refine_charged", charged)
        totals = zip((-charged.sum(-1)).tolist(), turn_mask.sum(-1).tolist(), strict=True)
        state.charged = {row: Divergence(*total) for row, total in zip(rows, totals, strict=True)}
        state.metrics.update(penalty.metrics(charged, data, turn_mask))

    def _for_actor(self, batch: KVBatchMeta, wanted: list[int], actor: Any, fields: list[str]) -> KVBatchMeta:
        """Return the wanted rows and as many others as the actor's ranks need; the actor fills micro-batches."""
        num_chunks = max(actor._dispatch_info["actor"]) + 1  # as verl's _balance_batch counts ranks
        rows = queue.select(batch, wanted, num_chunks=num_chunks, fields=fields)
        rows.extra_info = {"temperature": self._config.actor_rollout_ref.rollout.temperature}
        return rows

    def charge_rewards(self, batch: KVBatchMeta, state: StepState) -> torch.Tensor | None:
        """Add the penalty to the rewards if it acts there. Return the rewards without it; None if no row pays."""
        if self._place is not None:
            state.metrics[metric_names.PENALTY] = 0.0  # unless a row pays
        return self._charge_column("rm_scores", batch, state) if self._place == "rewards" else None

    def restore_rewards(self, batch: KVBatchMeta, state: StepState, own: torch.Tensor | None) -> None:
        """Take the penalty out of the rewards again, so that metrics and dumps show the task's rewards."""
        if own is not None:
            paying = state.paying(self._blocks.constraint, self._place)
            queue.write_column(queue.rows_of(batch, paying), "rm_scores", own)

    def charge_advantages(self, batch: KVBatchMeta, state: StepState) -> None:
        """Add the penalty to the advantages of a critic-free estimator, after its normalisation."""
        if self._place == "advantages":
            self._charge_column("advantages", batch, state)
        rescued = state.rescued(self._blocks.constraint)
        if rows := [row for row in state.pairs if group_of(batch.keys[row]) in rescued]:
            some = queue.rows_of(batch, rows)
            own = queue.read_padded(some, "advantages")["advantages"]
            queue.write_column(some, "advantages", torch.zeros_like(own))  # whatever an estimator made of equal rewards

    @property
    def _place(self) -> Place | None:
        penalty = self._blocks.constraint.penalty
        return None if penalty is None else penalty.place(self._config.algorithm.adv_estimator)

    def _charge_column(self, name: str, batch: KVBatchMeta, state: StepState) -> torch.Tensor | None:
        """Add the penalty to a column of the rows that pay. Return the column without it; None if no row pays."""
        penalty, place = self._blocks.constraint.penalty, self._place
        rows = state.paying(self._blocks.constraint, place)
        if not rows or penalty is None or place is None:
            return None
        some, pairs = queue.rows_of(batch, rows), [state.pairs[row] for row in rows]
        data = queue.read_padded(some, name, "response_mask", "refine_charged")
        costs = [penalty.cost(state.charged[row]) for row in rows]
        paid = sum(cost * state.eta for cost in costs)
        state.metrics[metric_names.PENALTY] = -paid / state.metrics[metric_names.TOKENS_ROLLOUT]
        inputs = penalty_inputs(
            starts=[pair.start for pair in pairs],
            num_kept=[pair.num_kept_tokens for pair in pairs],
            costs=costs,
            charged=data["refine_charged"],
            response_mask=data["response_mask"],
        )
        queue.write_column(some, name, penalty.pay(data[name], inputs, state.eta, place))
        return data[name]

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
            paying = {batch.keys[row] for row in state.paying(self._blocks.constraint, self._place)}
            self._workers.record_tokens(state.step, queue.rows_of(batch, state.shown), seen, paying, state.eta)
