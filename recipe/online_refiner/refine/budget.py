"""Which responses of a step are refined if refining may take a share of all tokens only (``refiner.budget``).

The driver chooses them after the rollout, since it knows the rewards of all groups and the results of earlier steps.
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
"""The share of the earlier counts that is left after a step."""
NUM_BANDS = 8
"""The most bands into which rewards are divided: the scale of a reward function is not known."""
NUM_FIRST = 4
"""The most refinements in the first step: each may cost many times as many tokens as a response."""


@dataclass(slots=True, kw_only=True)
class Kind:
    """How one kind of response was refined in the last steps; each step counts FORGET times as much as the next one."""

    asked: float = 0.0
    """Responses that were chosen."""
    accepted: float = 0.0
    """Refinements that were accepted."""
    tokens: float = 0.0
    """Tokens that the refiner generated."""

    @property
    def chance(self) -> float:
        """The expected share of accepted refinements; one half if the kind was never tried."""
        return (self.accepted + 1) / (self.asked + 2)


@dataclass(slots=True, kw_only=True)
class Rollouts:
    """The responses of a step, by row, before they are refined."""

    rewards: Mapping[int, float]
    """The reward of each row."""
    groups: Mapping[int, str]
    """The prompt that each row answers."""
    solved: Collection[int]
    """Rows whose reward cannot improve."""
    num_tokens: int
    """The number of tokens of all responses."""
    most: Mapping[str, int | None] = field(default_factory=dict)
    """The most refinements of a group, by group (``refiner.max_refinements_per_group``); None: no limit."""
    step: int = 0
    """The number of the step, which breaks ties together with the key of a row."""
    keys: Mapping[int, str] = field(default_factory=dict)
    """The key of each row in the queue; for a row without a key, its number is used."""

    def kinds(self) -> dict[int, str]:
        """Return the kind of each response that can improve: its band of reward, and whether its group is solved."""
        lucky = {self.groups[row] for row in self.solved}
        known = {row: reward for row, reward in self.rewards.items() if not math.isnan(reward)}  # nothing improves NaN
        rewards = {row: reward for row, reward in known.items() if row not in self.solved}
        return {
            row: f"{band}{', one solved' if self.groups[row] in lucky else ', none solved'}"
            for row, band in bands(rewards).items()
        }

    def luck(self, row: int) -> float:
        """Return a number that breaks ties. Rows cannot: they are ordered by rank and, within each rank, by length."""
        return luck(self.step, self.keys.get(row, row))


def bands(rewards: Mapping[int, float]) -> dict[int, str]:
    """Return the band of each row's reward: the reward itself, or the eighth of the step's rewards that holds it.

    Rewards that agree in six digits count as equal. If there are more than NUM_BANDS values, a reward's rank decides
    the band; equal rewards share the middle of their ranks.

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
    """A choice of the responses whose refinements are expected to cost the fewest tokens per accepted refinement.

    The expectation comes from the refinements of the same kind of response in earlier steps. A kind that was never
    tried, or not for long, is expected to be accepted every second time, so it is tried again. The first step tries
    NUM_FIRST kinds, once each, to see what a refinement costs.

    Example: with a share of 0.1, a step whose responses have 9,000 tokens has 1,000 for refinements. The next step has
    more if some of these are left, and fewer if the step took too many.
    """

    share: float
    """The share of all generated tokens that refinements may take."""
    saved: float = 0.0
    """The tokens that earlier steps have left; below 0 if they took too many. :meth:`observe` bounds it."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    """The counts of each kind of response."""

    def choose(self, rollouts: Rollouts) -> set[int]:
        """Return the rows to refine.

        Among rows with the same expectation, each group gets its first refinement before any group gets a second one,
        lowest rewards first.
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
        """Return the expected number of acceptances among ``rows``; None: among all responses that can improve."""
        kinds = rollouts.kinds()
        return sum(self.kinds.get(kinds[row], Kind()).chance for row in (kinds if rows is None else rows))

    def kept(self, rollouts: Rollouts, chosen: Collection[int]) -> float:
        """Return the share of the expected acceptances that the chosen rows have; 1 if none are expected."""
        whole = self.expected(rollouts)
        return self.expected(rollouts, chosen) / whole if whole else 1.0

    def observe(self, rollouts: Rollouts, pairs: Mapping[int, Pair]) -> None:
        """Count the results of a step's chosen responses, ``pairs``, by row.

        A refinement that failed without generating tokens counts at the usual cost: the cost of a lost request is not
        known, and a response that cannot be refined must not look cheap.
        """
        names, usual, allowance = rollouts.kinds(), self._usual_cost(rollouts), self._allowance(rollouts)
        for kind in self.kinds.values():
            kind.asked, kind.accepted, kind.tokens = (FORGET * one for one in (kind.asked, kind.accepted, kind.tokens))
        self.saved += allowance
        for row, pair in pairs.items():
            cost, kind = float(pair.num_generated_tokens), self.kinds.setdefault(names[row], Kind())
            if not cost and not pair.verdict.is_scored:  # a scored one without tokens shares another one's
                cost = usual
            kind.asked += 1
            kind.accepted += pair.is_accepted
            kind.tokens += cost
            if pair.verdict not in SKIPPED:
                self.saved -= cost
        self.saved = min(max(allowance, usual), self.saved)  # or unused tokens would add up

    def _allowance(self, rollouts: Rollouts) -> float:
        return rollouts.num_tokens * self.share / (1 - self.share)

    def _usual_cost(self, rollouts: Rollouts) -> float:
        """Return the mean tokens of a refinement so far; of a response if there was no refinement."""
        asked, tokens = (sum(getattr(kind, name) for kind in self.kinds.values()) for name in ("asked", "tokens"))
        return tokens / asked if asked else rollouts.num_tokens / max(1, len(rollouts.rewards))

    def save(self, path: Path) -> None:
        """Write the state that a resumed run reads."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Read the state that :meth:`save` wrote; if it is missing or of another share, warn and begin anew."""
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if known.get("share") != self.share:
            logger.warning("refiner.budget=%g learns anew: %s is of %s", self.share, path, known.get("share", "no run"))
            return
        self.saved = known["saved"]
        self.kinds = {name: Kind(**kind) for name, kind in known["kinds"].items()}
