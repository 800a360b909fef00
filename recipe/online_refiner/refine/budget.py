"""Which responses are worth a refinement where only so many tokens may be spent on it (``refiner.budget``).

The driver decides, after the rollout: it knows the rewards of all groups, and what became of earlier refinements.
"""

import json
import logging
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from recipe.online_refiner.method.pairs import SKIPPED, Pair, luck

logger = logging.getLogger(__name__)

FORGET = 0.9
"""What a step leaves of the counts of earlier ones."""
NUM_BANDS = 8
"""Bands of reward in which kinds are counted, at most: nobody knows the scale of a reward function."""
NUM_FIRST = 4
"""Refinements of the first step, at most: they may cost many times what responses do."""


@dataclass(slots=True, kw_only=True)
class Kind:
    """What is known of the refinements of responses of one kind."""

    asked: float = 0.0
    accepted: float = 0.0
    tokens: float = 0.0

    @property
    def chance(self) -> float:
        """Share of accepted refinements; one half where nothing is known."""
        return (self.accepted + 1) / (self.asked + 2)


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """The responses of a step: what is known before they are refined."""

    rewards: Mapping[int, float]
    """The reward of each row."""
    groups: Mapping[int, str]
    """The prompt that each row answers."""
    solved: Collection[int]
    """Rows whose reward cannot improve."""
    num_tokens: int
    """Tokens of all responses."""
    most: Mapping[str, int | None] = field(default_factory=dict)
    """Refinements of a group, at most (``refiner.max_refinements_per_group``)."""
    step: int = 0
    """The number of the step, which breaks ties together with the key."""
    keys: Mapping[int, str] = field(default_factory=dict)
    """The key of each row in the queue; a row without one is known by its number."""

    def kinds(self) -> dict[int, str]:
        """Return the kind of each response that can improve: band of reward; group with a solved response or not."""
        lucky = {self.groups[row] for row in self.solved}
        known = {row: reward for row, reward in self.rewards.items() if not math.isnan(reward)}  # none is above NaN
        rewards = {row: reward for row, reward in known.items() if row not in self.solved}
        return {
            row: f"{band}{', one solved' if self.groups[row] in lucky else ', none solved'}"
            for row, band in bands(rewards).items()
        }

    def luck(self, row: int) -> float:
        """Return a number that breaks ties: rows are in the order of ranks, and of lengths in each of them."""
        return luck(self.step, self.keys.get(row, row))


def bands(rewards: Mapping[int, float]) -> dict[int, str]:
    """Return the band of each row's reward: the reward itself, or the eighth of the step's rewards in which it is.

    Rewards with the same six digits are equal. There are NUM_BANDS bands at most, so rewards of more values are
    known by their rank: the middle of the ranks of all equal ones.

    Example: ``bands({3: -1.0, 5: -0.0})`` is ``{3: "-1.0", 5: "0.0"}``; of 80 rewards that all differ, the ten lowest
    are in ``"eighth 1"``.
    """
    rounded = {row: float(f"{reward:.6g}") + 0.0 for row, reward in rewards.items()}  # + 0.0: -0.0 is 0.0
    if len({*rounded.values()}) <= NUM_BANDS:
        return {row: str(reward) for row, reward in rounded.items()}
    ordered = sorted(rounded.values())
    ranks = {one: (bisect_left(ordered, one) + bisect_right(ordered, one)) / 2 for one in {*ordered}}
    return {row: f"eighth {int(NUM_BANDS * ranks[one] / len(ordered)) + 1}" for row, one in rounded.items()}


@dataclass(slots=True, kw_only=True)
class Budget:
    """Chooses responses like those whose refinements were accepted lately, at the fewest tokens for an accepted one.

    A kind of response that was not tried, or long ago, counts as accepted every second time: so it is tried again. The
    first step tries NUM_FIRST kinds, once each, to see what a refinement costs.

    Example: with a share of 0.1, a step whose responses have 9,000 tokens has 1,000 for refinements. What it leaves or
    spends too much the next one has more or less.
    """

    share: float
    """Of all generated tokens."""
    saved: float = 0.0
    """Tokens that the steps so far have left, a step's at most, or for a refinement that costs more; below 0 if they
    were longer than expected."""
    kinds: dict[str, Kind] = field(default_factory=dict)

    def choose(self, rollouts: Rollouts) -> set[int]:
        """Return the rows to refine.

        Among rows that are as likely to pay, each group has its first before one has its second: that with the lowest
        reward.
        """
        names = rollouts.kinds()
        usual = self._usual_cost(rollouts)
        order, number = [], Counter[tuple[str, float]]()
        for row in sorted(names, key=lambda row: (rollouts.rewards[row], rollouts.luck(row))):
            kind = self.kinds.get(names[row], Kind())
            cost = (kind.tokens + usual) / (kind.asked + 1)
            pays = kind.chance / cost
            number[rollouts.groups[row], pays] += 1
            order.append((-pays, number[rollouts.groups[row], pays], rollouts.luck(row), row, cost))
        left, chosen, taken = self.saved + self._allowance(rollouts), list[int](), Counter[str]()
        for *_, row, cost in sorted(order):
            group = rollouts.groups[row]
            if taken[group] != rollouts.most.get(group) and cost <= left:
                left -= cost
                chosen.append(row)
                taken[group] += 1
        if self.kinds:
            return set(chosen)
        first_of_kind = dict[str, int]()
        for row in chosen:
            first_of_kind.setdefault(names[row], row)
        return {*[*first_of_kind.values()][:NUM_FIRST]}

    def expected(self, rollouts: Rollouts, rows: Collection[int] | None = None) -> float:
        """Return how many acceptances are expected of rows, or of all responses that can improve."""
        kinds = rollouts.kinds()
        return sum(self.kinds.get(kinds[row], Kind()).chance for row in (kinds if rows is None else rows))

    def kept(self, rollouts: Rollouts, chosen: Collection[int]) -> float:
        """Return the expected acceptances of the chosen rows divided by those of all; 1 if no response can improve."""
        whole = self.expected(rollouts)
        return self.expected(rollouts, chosen) / whole if whole else 1.0

    def observe(self, rollouts: Rollouts, pairs: Mapping[int, Pair]) -> None:
        """Take note of what became of the chosen responses of a step, ``pairs``.

        One that brought nothing counts as a failure at the usual cost: what a lost request took nobody knows, and a
        response that cannot be refined must not look cheap.
        """
        names, usual, allowance = rollouts.kinds(), self._usual_cost(rollouts), self._allowance(rollouts)
        for kind in self.kinds.values():
            kind.asked, kind.accepted, kind.tokens = (FORGET * one for one in (kind.asked, kind.accepted, kind.tokens))
        self.saved += allowance
        for row, pair in pairs.items():
            cost, kind = float(pair.num_generated_tokens), self.kinds.setdefault(names[row], Kind())
            if not cost and not pair.verdict.is_scored:  # what is scored without any was drawn for another response
                cost = usual
            kind.asked += 1
            kind.accepted += pair.is_accepted
            kind.tokens += cost
            if pair.verdict not in SKIPPED:
                self.saved -= cost
        self.saved = min(max(allowance, usual), self.saved)  # what is not wanted is not kept for ever

    def _allowance(self, rollouts: Rollouts) -> float:
        return rollouts.num_tokens * self.share / (1 - self.share)

    def _usual_cost(self, rollouts: Rollouts) -> float:
        """Return the tokens of a refinement: so far, or of a response where nothing is known."""
        asked, tokens = (sum(getattr(kind, name) for kind in self.kinds.values()) for name in ("asked", "tokens"))
        return tokens / asked if asked else rollouts.num_tokens / max(1, len(rollouts.rewards))

    def save(self, path: Path) -> None:
        """Write what a resumed run needs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote; without it, or with another share, all begins again, and a line says so."""
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known.get("share") != self.share:
            logger.warning("refiner.budget=%g learns anew: %s is of %s", self.share, path, known.get("share", "no run"))
            return
        self.saved = known["saved"]
        self.kinds = {name: Kind(**kind) for name, kind in known["kinds"].items()}
