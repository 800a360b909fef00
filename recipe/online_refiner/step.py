"""What one stage of a step knows and a later one needs."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from recipe.online_refiner.rollout import Outcome


class Member(NamedTuple):
    """A rollout of a group, as far as the constraint is concerned."""

    group: str
    reward: float
    divergence: float | None
    """D of Eq. 6, in nats; None without a used refinement, or where D was not computed."""
    num_tokens: int
    """min(n, m): length of the shorter of a and a'; 0 without a refinement."""

    @property
    def divergence_per_token(self) -> float:
        """D / min(n, m); 0 without a used refinement."""
        return (self.divergence or 0.0) / max(1, self.num_tokens)


def dead_groups(members: Iterable[Member]) -> set[str]:
    """Return the groups of several responses whose rewards are all equal: none has anything to learn from a sibling."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for one in members:
        rewards[one.group].append(one.reward)
    return {group for group, values in rewards.items() if len(values) > 1 and min(values) == max(values)}


@dataclass(slots=True, kw_only=True)
class StepState:
    """One step of the trainer. Rows are positions in its batch, which nothing reorders after ``_balance_batch``."""

    step: int = 0
    started_at: float = field(default_factory=time.monotonic)
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
    def divergence(self) -> float:
        """D of Eq. 5: mean over all rollouts of the step, rejected ones counting 0; nats per rollout."""
        return sum(self.divergences.values()) / max(1, len(self.rows))

    @property
    def divergence_per_token(self) -> float:
        """Mean over all rollouts of D / min(n, m), rejected ones counting 0; nats per token."""
        return sum(one.divergence_per_token for one in self.members) / max(1, len(self.rows))
