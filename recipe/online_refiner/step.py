"""What one stage of a step knows and a later one needs."""

import time
from dataclasses import dataclass, field
from typing import Any

from recipe.online_refiner.groups import Member
from recipe.online_refiner.rollout import Outcome


@dataclass(slots=True, kw_only=True)
class StepState:
    """One step of the trainer, or one of its mini-batches where it samples each by itself (``separate_async``).

    Rows are positions in its batch, which nothing reorders after ``_balance_batch``.
    """

    step: int = 0
    part: int = 0
    """Which mini-batch of the step, of ``num_parts``."""
    num_parts: int = 1
    started_at: float = field(default_factory=time.monotonic)
    """When its rollouts were first waited for."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """verl's own of this step; ours are added as they are known, and none is read back."""
    num_restarts: int = 0
    """Replicas of the refiner that were started anew before the step."""
    rows: list[int] = field(default_factory=list)
    """The rollouts: all rows but padding."""
    rewards: dict[int, float] = field(default_factory=dict)
    """r(s0, a) of the rollouts, by row."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """What became of their refinements, by row."""
    kl_rows: list[int] = field(default_factory=list)
    """Rows whose log pi_0 is known."""
    eta: float = 0.0
    """Weight of the constraint."""
    nll: dict[int, float] = field(default_factory=dict)
    """-log pi_theta(a'), summed over tokens, in nats, of the rows where it was computed."""
    divergences: dict[int, float] = field(default_factory=dict)
    """Eq. 6 summed over tokens, in nats, of those rows: 0 where the pair is not used."""
    members: list[Member] = field(default_factory=list)
    """The rollouts, in the order of ``rows``, once the divergences are known."""

    @property
    def used(self) -> list[int]:
        """Rows whose refinement acts on the policy."""
        return [row for row, outcome in self.outcomes.items() if outcome.is_used]

    def share(self, per_step: int) -> int:
        """Return a mini-batch's part of what a step may have at most."""
        return -(-per_step // self.num_parts)

    @property
    def divergence(self) -> float:
        """D of Eq. 5: mean over all rollouts of the step, rejected ones counting 0; nats per rollout."""
        return sum(self.divergences.values()) / max(1, len(self.rows))

    @property
    def divergence_per_token(self) -> float:
        """Mean over all rollouts of D / min(n, m), rejected ones counting 0; nats per token."""
        return sum(one.divergence_per_token for one in self.members) / max(1, len(self.rows))
