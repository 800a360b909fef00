"""What the responses to one prompt say about each other: pure functions of their rewards."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

EPSILON = 1e-6
"""As verl's GRPO has it beside the group's deviation (``verl/trainer/ppo/core_algos.py``)."""


class Member(NamedTuple):
    """A rollout of a group, as far as the constraint is concerned."""

    group: str
    reward: float
    divergence: float | None
    """D of Eq. 6, in nats; None without a used refinement, of a solved response that is its own, and where D was not
    computed."""
    num_tokens: int
    """min(n, m): length of the shorter of a and a', less what a' was begun with; 0 without a used refinement."""
    refined_reward: float | None = None
    """r(s0, a'); None without a used refinement."""

    @property
    def divergence_per_token(self) -> float:
        """D / min(n, m); 0 without a used refinement."""
        return (self.divergence or 0.0) / max(1, self.num_tokens)


def by_group(members: Sequence[Member]) -> Iterable[list[int]]:
    """Return the positions of each group's members."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(members):
        groups[one.group].append(index)
    return groups.values()


def dead_groups(members: Sequence[Member]) -> set[str]:
    """Return the groups of several responses whose rewards are all equal: none has anything to learn from a sibling."""
    alike = (
        group for group in by_group(members) if len(group) > 1 and len({members[index].reward for index in group}) == 1
    )
    return {members[group[0]].group for group in alike}


def failure_rate(rewards: Sequence[float], is_solved: Callable[[float], bool]) -> float:
    """Return the share of a group's responses that do not solve the task."""
    return sum(not is_solved(reward) for reward in rewards) / len(rewards)


def mixed_advantages(rewards: Sequence[float], refined: Sequence[float]) -> tuple[list[float], list[float]]:
    """Normalise a group as if its refinements were members, as LUFFY does (J. Yan et al., arXiv 2504.14945, Eq. 5).

    Args:
        rewards: r(s0, a) of the group's responses.
        refined: r(s0, a') of its used refinements.

    Returns:
        The advantages of the responses, and of the refinements: reward minus mean, by the deviation, of both together.
    """
    everyone = [*rewards, *refined]
    center, scale = mean(everyone), stdev(everyone) + EPSILON if len(everyone) > 1 else 1.0
    return [(one - center) / scale for one in rewards], [(one - center) / scale for one in refined]


def weights_of_pairs(name: str | None, members: Sequence[Member], is_solved: Callable[[float], bool]) -> list[float]:
    """Return what eta is multiplied by for each rollout (``constraint.pair_weights``).

    Args:
        name: ``failure_rate`` of the rollout's group; ``advantage`` of its refinement as a member of it; None: 1.
        members: Of whole groups.
        is_solved: Tells whether a reward is maximal.
    """
    weights = [1.0] * len(members)
    for group in by_group(members) if name else ():
        rewards = [members[index].reward for index in group]
        refined = [(index, value) for index in group if (value := members[index].refined_reward) is not None]
        if name == "failure_rate":  # of siblings too, to which a credit may give what it takes from others
            found = dict.fromkeys(group, failure_rate(rewards, is_solved))
        else:
            _, advantages = mixed_advantages(rewards, [value for _, value in refined])
            found = dict(zip((index for index, _ in refined), advantages, strict=True))
        for index, weight in found.items():
            weights[index] = weight
    return weights
