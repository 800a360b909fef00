"""The shares that ``check`` prints, which compare refining an answer with sampling a second one."""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from recipe.online_refiner.method.eq6 import is_higher
from recipe.online_refiner.method.pairs import Refinement, Rollout, Verdict

FEWEST = 5
"""The least number of problems for an interval: fewer, if they are alike, have an interval without width."""

OUTCOMES: dict[str, Callable[[Rollout, Refinement], bool]] = {
    "improved": lambda old, new: new.verdict.is_scored and is_higher(new.reward or 0.0, old.reward),
    "worsened": lambda old, new: new.verdict.is_scored and is_higher(old.reward, new.reward or 0.0),
    "repeated": lambda old, new: new.is_repeated,
    "leaked": lambda old, new: new.verdict is Verdict.LEAK,
    "truncated": lambda old, new: new.verdict in (Verdict.TRUNCATED, Verdict.THOUGHT, Verdict.TOO_LONG),
}
"""The outcomes of refining a wrong answer that are counted; the rest is, for example, an equal reward."""


@dataclass(slots=True)
class Found:
    """The answers and refinements seen so far."""

    num_problems: int = 0
    num_answers: int = 0
    wrong: list[Rollout] = field(default_factory=list)
    """The wrong answers, whose rewards can improve."""
    others: list[list[tuple[bool, bool]]] = field(default_factory=list)
    """One list per wrong answer, with a pair for each other answer to the problem.

    The pair is (that answer has a higher reward, a third answer to the problem is right).
    """
    refined: dict[str, list[Refinement]] = field(default_factory=dict)
    """The refinements of ``wrong``, in its order, by variant of the refiner."""

    def add(self, group: list[Rollout], refined: dict[str, list[Refinement]]) -> None:
        """Add the answers to a problem, and their refinements by variant of the refiner."""
        self.num_problems += 1
        self.num_answers += len(group)
        own = list[Rollout]()
        for way, found in refined.items():
            # The refiner has told whose rewards can improve.
            pairs = [pair for pair in zip(group, found, strict=True) if pair[1].verdict is not Verdict.MAX_REWARD]
            own = [old for old, _ in pairs]  # as of every way
            self.refined.setdefault(way, []).extend(new for _, new in pairs)
        right = [one for one in group if one not in own]
        for one in own:
            others = [other for other in group if other is not one]
            self.others.append([(is_higher(other.reward, one.reward), right not in ([], [other])) for other in others])
        self.wrong += own

    def describe(self) -> str:
        """Return the table with the lines above and below it."""
        if not self.wrong:
            return f"nothing was refined: none of {self.num_answers} answers has a reward below --highest-reward"
        problems = self._problems(range(len(self.wrong)))
        lines = [
            f"{len(self.wrong)} of {self.num_answers} answers were refined ({len(set(problems))} of "
            f"{self.num_problems} problems)"
        ]
        if compared := [n for n, others in enumerate(self.others) if others]:
            better = np.array([np.mean([is_better for is_better, _ in self.others[n]]) for n in compared])
            lines.append(f"A second answer scores higher than the first: {_share(better, problems[compared])}")
        heads = ("variant", *OUTCOMES, "tokens read", "tokens written")
        lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        first: dict[str, np.ndarray] = {}
        for way, refined in self.refined.items():
            cells = []
            for name in OUTCOMES:
                values = self._values(way, name)
                cells.append(_share(values, problems))
                if name in first:
                    difference = interval(values - first[name], problems, least=-1.0)
                    cells[-1] += ", {:+.1%} ({:+.1%} to {:+.1%})".format(*difference)
                first.setdefault(name, values)
            for kind in ("prompt", "generated"):
                cells.append(f"{np.mean([getattr(one, f'num_{kind}_tokens') for one in refined]):.0f}")
            lines.append(f"| `{way}` | {' | '.join(cells)} |")
        return "\n".join([*lines, "", *self.yields(), *self.leaks(), *self.verdicts()])

    def yields(self) -> list[str]:
        """Return a line for each variant that drew several refinements: how often the best of 1, 2, ... is better.

        If c of n drawn refinements are better, at least one of k is better with probability 1 - C(n - c, k) / C(n, k).
        """
        lines = []
        for way, refined in self.refined.items():
            num, said = max(one.num_samples for one in refined), []
            for k in range(1, num + 1):
                shares = [1 - math.comb(num - one.num_better, k) / math.comb(num, k) for one in refined]
                said.append(f"{k}: {_share(np.array(shares), self._problems(range(len(self.wrong))))}")
            lines += [f"`{way}`, improved by the best of {', '.join(said)}"] * (num > 1)
        return lines

    def leaks(self) -> list[str]:
        """Return a line for each variant that loses refinements by the leak rule: how many, and their rewards."""
        lines = []
        for way, refined in self.refined.items():
            pairs = [pair for pair in zip(self.wrong, refined, strict=True) if pair[1].verdict is Verdict.LEAK]
            num_higher = sum(new.reward is not None and is_higher(new.reward, old.reward) for old, new in pairs)
            if pairs:
                said = f"`{way}`: {len(pairs)} refinements rejected as leaks, {num_higher} of them with a higher reward"
                lines.append(f"{said} (refiner.reject_leaks; read them in all.jsonl)")
        return lines

    def verdicts(self) -> list[str]:
        """Return a line for each variant: does it improve more wrong answers than a second answer does?

        Further lines compare on unsolved problems only, and on solved ones. Whether a problem is solved is decided by
        its third answers, not by the compared one: otherwise the second answer to an unsolved problem would be wrong by
        definition, and refining would always win.
        """
        pairs = [(n, *other) for n, others in enumerate(self.others) for other in others]
        answers, better, is_solved = np.array(pairs, dtype=int).reshape(-1, 3).T
        lines = []
        for which, chosen in {
            "": is_solved >= 0,
            " where no answer is right": is_solved == 0,
            " where one is right": is_solved == 1,
        }.items():
            if not chosen.any() or (which and chosen.all()):
                continue
            problems = self._problems(answers[chosen])
            for way in self.refined:
                differences = self._values(way, "improved")[answers[chosen]] - better[chosen]
                mean, low, high = interval(differences, problems, least=-1.0)
                is_clear = len(set(problems)) >= FEWEST and not low <= 0 <= high
                word = "wins" if mean > 0 else "loses"
                lines.append(
                    f"`{way}` against a second answer{which}: {mean:+.1%} ({low:+.1%} to {high:+.1%}, "
                    f"{len(set(answers[chosen]))} answers): "
                    f"{f'it {word}' if is_clear else 'too close to call; run more --problems'}"
                )
        return lines

    def _problems(self, answers: Iterable[int]) -> np.ndarray:
        return np.array([int(self.wrong[n].group) for n in answers])

    def _values(self, way: str, outcome: str) -> np.ndarray:
        pairs = zip(self.wrong, self.refined[way], strict=True)
        return np.array([float(OUTCOMES[outcome](*pair)) for pair in pairs])


def interval(values: np.ndarray, problems: np.ndarray, least: float = 0.0) -> tuple[float, float, float]:
    """Return a mean with its 95 % interval by Student's t over problems, since answers to one problem are alike.

    A bootstrap over problems is too narrow: if two variants are equally good, it excludes 0 in 9 % of the cases with 24
    problems and in 12 % with 8 problems; this interval does so in 6 % and 1 %.

    Args:
        values: One value for each answer, at most 1; for a pair of variants, the difference.
        problems: The problem of each answer.
        least: The smallest possible value.
    """
    _, places, sizes = np.unique(problems, return_inverse=True, return_counts=True)
    num, mean = len(sizes), float(values.mean())
    if num == 1:
        return mean, least, 1.0
    deviations = np.bincount(places, weights=values) - mean * sizes
    width = _student(num - 1) * math.sqrt(num / (num - 1)) * float(np.linalg.norm(deviations)) / len(values)
    return mean, max(least, mean - width), min(1.0, mean + width)


@functools.cache
def _student(degrees: int) -> float:
    """Return the bound that |Student's t| exceeds in 5 % of the cases, to a hundredth.

    It is found by sampling, because SciPy may not be installed.
    """
    return float(np.quantile(np.random.default_rng(0).standard_t(degrees, 1_000_000), 0.975))


def _share(values: np.ndarray, problems: np.ndarray) -> str:
    return "{:.1%} ({:.1%} to {:.1%})".format(*interval(values, problems))
