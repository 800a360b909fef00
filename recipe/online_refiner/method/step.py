"""The state of a step: what one stage knows and a later stage needs."""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recipe.online_refiner.method.constraint import Constraint
from recipe.online_refiner.method.pairs import Divergence, Pair, group_of
from recipe.online_refiner.method.penalty import Place
from refiner_worker.client import RunEndedError

HOOKS = ("on_sample_begin", "_balance_batch", "_compute_old_log_prob", "_compute_advantage", "_update_actor")
"""The methods of verl's trainer in which the stages of a step run, in this order."""


@dataclass(slots=True, kw_only=True)
class StepState:
    """One step of the trainer, or one of its mini-batches if the trainer samples each apart (``separate_async``).

    Rows are positions in its batch, which nothing reorders after ``_balance_batch``. Example: after the refine stage of
    a step of two prompts with two responses each, ``pairs`` has the keys 0 to 3, padding after them has none.
    """

    step: int = 0
    part: int = 0
    """The mini-batch's number in the step, below ``num_parts``."""
    num_parts: int = 1
    started_at: float = field(default_factory=time.time)
    """The time at which its rollouts were first waited for, in seconds since the epoch."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The metrics of this step: verl's own, and ours as soon as they are known."""
    counts: dict[str, float] = field(default_factory=dict)
    """The number of values that a metric is a mean over, by the metric's name, where no other metric has it."""
    filtered: Mapping[float, int] = field(default_factory=dict)
    """Groups that DAPO's filter took out before the mini-batch was waited for, by the reward of their responses."""
    num_restarts: int = 0
    """Number of replicas of the refiner that were started again before the step."""
    pairs: dict[int, Pair] = field(default_factory=dict)
    """The pairs of all rollouts and their refinements, by row, without padding."""
    charged: dict[int, Divergence] = field(default_factory=dict)
    """The divergences of the rows that the penalty charges, by row; empty where the mode has no penalty. :meth:`paying`
    says which of them pay."""
    shown: list[int] = field(default_factory=list)
    """Rows that are shown, and whose tokens are recorded with their numbers."""
    kl_rows: list[int] = field(default_factory=list)
    """Rows of which log pi_0 is known."""
    eta: float = 0.0
    """Weight of the constraint."""
    hook: str = ""
    """The last of HOOKS that verl has called."""
    keys: list[str] = field(default_factory=list)
    """Keys of the batch's rows, in their order, from ``_balance_batch`` on."""

    def enter(self, hook: str, keys: list[str]) -> None:
        """Note that verl has called the next of HOOKS, for a batch with these keys.

        Raises:
            RunEndedError: If verl has not called the one before it, or for another batch: its stage is missing.
        """
        before = HOOKS[HOOKS.index(hook) - 1]
        if self.hook != before or (self.keys and self.keys != keys):
            raise RunEndedError(
                f"step {self.step}: the trainer has called {hook} without {before} for the same batch, so a stage of "
                "this extension is missing and the step would train without its constraint. A trainer of your own "
                "calls super() in each of them, in verl's order."
            )
        self.hook = hook

    def share(self, per_step: int) -> int:
        """Return the part of a mini-batch in a number that a step may have at most, rounded up."""
        return -(-per_step // self.num_parts)

    def measured(self, row: int) -> Divergence:
        """Return the divergence of a row; if it is not charged, its measured D of Eq. 6 (0 if it was not measured)."""
        pair = self.pairs[row]
        return self.charged.get(row, Divergence(pair.divergence, pair.num_compared_tokens))

    def rescued(self, constraint: Constraint) -> set[str]:
        """Return the dead groups (their rewards are equal) that the constraint keeps for their better refinement."""
        if not constraint.rescues or self.eta == 0:
            return set()
        groups: dict[str, list[Pair]] = defaultdict(list)
        for row, pair in self.pairs.items():
            groups[group_of(self.keys[row])].append(pair)
        return {
            name
            for name, pairs in groups.items()
            if len(pairs) > 1 and len({pair.reward for pair in pairs}) == 1 and any(pair.is_accepted for pair in pairs)
        }

    def paying(self, constraint: Constraint, place: Place | None) -> list[int]:
        """Return the charged rows that pay, in the order of ``pairs``.

        With eta = 0, which leaves verl's numbers alone, nobody pays; rows of rescued groups do not pay either, and
        neither does anybody where the penalty has no place (None): the mode has no penalty.
        """
        if self.eta == 0 or place is None:
            return []
        rescued = self.rescued(constraint)
        return [row for row in self.pairs if row in self.charged and group_of(self.keys[row]) not in rescued]
