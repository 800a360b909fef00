"""The penalty of a run's mode on the rows of a step: their divergences, and the rewards or advantages that pay."""

from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from recipe.online_refiner import metric_names, metrics
from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.method.eq6 import penalty_inputs, since
from recipe.online_refiner.method.in_place import InPlacePenalty
from recipe.online_refiner.method.pairs import Divergence, group_of
from recipe.online_refiner.method.penalty import Eq6Penalty, PenaltyPart, Place
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.verl_glue import rows as queue
from recipe.online_refiner.verl_glue.actor_worker import IN_PLACE_COLUMNS
from refiner_worker.client import RunEndedError


def _charge(penalty: PenaltyPart, data: TensorDict, turn_mask: torch.Tensor) -> torch.Tensor:
    """Return the charges of some turns by the mode.

    Raises:
        RunEndedError: If the mode reads a column that it has not asked for.
    """
    try:
        return penalty.charge(data, turn_mask)
    except KeyError as error:
        if "TensorDict" not in str(error):  # a key of something else of the mode's
            raise
        name = f"{type(penalty).__module__}.{type(penalty).__qualname__}"
        raise RunEndedError(
            f"{name}.charge reads a column that is not in {name}.reads={penalty.reads}; add it there: {error.args[0]}"
        ) from error


class Charges:
    """The penalty of the run's mode. It keeps nothing between steps."""

    def __init__(self, config: DictConfig, blocks: RefinementConfig) -> None:
        """Keep the config and its blocks."""
        self._config, self._blocks = config, blocks

    def measure(self, penalty: PenaltyPart, batch: KVBatchMeta, state: StepState, actor: Any) -> None:
        """Set the divergences of the charged rows: D of Eq. 6 from the actor's pass, or by the mode's own charges."""
        rows = {row: pair for row, pair in state.pairs.items() if penalty.is_charged(pair)}
        if isinstance(penalty, Eq6Penalty):
            state.charged = {row: Divergence(pair.divergence, pair.num_compared_tokens) for row, pair in rows.items()}
        elif rows:
            self._measure_tokens(penalty, [*rows], batch, state, actor)

    def _measure_tokens(
        self, penalty: PenaltyPart, rows: list[int], batch: KVBatchMeta, state: StepState, actor: Any
    ) -> None:
        """Compute and write the mode's own charge of each token of some turns (``PenaltyPart.charge``)."""
        temperature = self._config.actor_rollout_ref.rollout.temperature
        if self._blocks.is_shared and isinstance(penalty, InPlacePenalty):  # pi_0 is the actor without its adapter
            actor.compute_in_place_log_prob(queue.for_actor(batch, rows, actor, IN_PLACE_COLUMNS, temperature))
        some = queue.rows_of(batch, rows)
        data = queue.read_padded(some, *penalty.reads, "response_mask")
        turn_mask = since(torch.tensor([state.pairs[row].start for row in rows]), data["response_mask"])
        charged = _charge(penalty, data, turn_mask)
        queue.write_column(some, "refine_charged", charged)
        totals = zip((-charged.sum(-1)).tolist(), turn_mask.sum(-1).tolist(), strict=True)
        state.charged = {row: Divergence(*total) for row, total in zip(rows, totals, strict=True)}
        own = penalty.metrics(charged, data, turn_mask)
        state.metrics.update(metrics.declared(self._blocks.constraint, own))

    def charge_rewards(self, batch: KVBatchMeta, state: StepState) -> torch.Tensor | None:
        """Add the penalty to the rewards if it acts there. Return the rewards without it; None if no row pays."""
        if self.place is not None:
            state.metrics[metric_names.PENALTY] = 0.0  # unless a row pays
        return self._pay("rm_scores", batch, state) if self.place == "rewards" else None

    def restore_rewards(self, batch: KVBatchMeta, state: StepState, own: torch.Tensor | None) -> None:
        """Take the penalty out of the rewards again, so that metrics and dumps show the task's rewards."""
        if own is not None:
            paying = state.paying(self._blocks.constraint, self.place)
            queue.write_column(queue.rows_of(batch, paying), "rm_scores", own)

    def charge_advantages(self, batch: KVBatchMeta, state: StepState) -> None:
        """Add the penalty to the advantages of a critic-free estimator, after its normalisation."""
        if self.place == "advantages":
            self._pay("advantages", batch, state)
        rescued = state.rescued(self._blocks.constraint)
        if rows := [row for row in state.pairs if group_of(batch.keys[row]) in rescued]:
            some = queue.rows_of(batch, rows)
            own = queue.read_padded(some, "advantages")["advantages"]
            queue.write_column(some, "advantages", torch.zeros_like(own))  # whatever an estimator made of equal rewards

    @property
    def place(self) -> Place | None:
        """The place where the penalty acts with the run's estimator; None: the mode has no penalty."""
        penalty = self._blocks.constraint.penalty
        return None if penalty is None else penalty.place(self._config.algorithm.adv_estimator)

    def _pay(self, name: str, batch: KVBatchMeta, state: StepState) -> torch.Tensor | None:
        """Add the penalty to a column of the rows that pay. Return the column without it; None if no row pays."""
        penalty, place = self._blocks.constraint.penalty, self.place
        rows = state.paying(self._blocks.constraint, place)
        if not rows or penalty is None or place is None:
            return None
        some, pairs = queue.rows_of(batch, rows), [state.pairs[row] for row in rows]
        data = queue.read_padded(some, name, "response_mask", "refine_charged")
        costs = [penalty.cost(state.charged[row]) for row in rows]
        scales = [self._blocks.constraint.scale(pair.source) for pair in pairs]
        paid = sum(cost * scale * state.eta for cost, scale in zip(costs, scales, strict=True))
        state.metrics[metric_names.PENALTY] = -paid / state.metrics[metric_names.TOKENS_ROLLOUT]
        inputs = penalty_inputs(
            starts=[pair.start for pair in pairs],
            num_kept=[pair.num_kept_tokens for pair in pairs],
            costs=costs,
            scales=scales,
            charged=data["refine_charged"],
            response_mask=data["response_mask"],
        )
        queue.write_column(some, name, penalty.pay(data[name], inputs, state.eta, place))
        return data[name]
