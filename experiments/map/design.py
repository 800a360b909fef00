"""The runs of the map: its points, the arms at each point, the seeds, and the tuning before them (PROTOCOL.md)."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

import numpy as np

from experiments.map.arms import ARMS

RESULTS = Path(__file__).resolve().parents[1] / "results" / "map"
WEIGHTS = RESULTS / "weights.json"
"""The file of the weights that tuning has chosen, by point, then by arm."""
SHORT, LONG, EVERY = 150, 600, 25
"""The steps of a short and of a long run, and the steps between validations."""
SEEDS = tuple(range(1, 27))
TUNING_SEEDS = (901, 902)
NUM_BASES = 2
"""Run seeds take turns with this many base seeds."""
TUNED_KIND = "r60"


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the map: how strong pi_0 is, and the learning rate."""

    name: str
    strength: str
    rate: float


POINTS = {
    point.name: point
    for point in (
        Point("weak", "weak", 1e-3),
        Point("steep", "weak", 2e-3),
        Point("strong", "strong", 1e-3),
    )
}


@dataclass(frozen=True, slots=True)
class Spec:
    """A run."""

    point: str
    arm: str
    kind: str
    """The kind of refiner; empty if the arm has none."""
    seed: int
    steps: int
    weight: float = 0.0

    @property
    def key(self) -> str:
        """The run's key, which no other run has."""
        return "/".join(map(str, (self.point, self.arm, self.kind, self.weight, self.seed, self.steps)))

    @property
    def base_seed(self) -> int:
        """The seed of the base that the run begins with."""
        return 1 + self.seed % NUM_BASES


@dataclass(frozen=True, slots=True)
class Block:
    """Runs that belong together: some arms, with some refiners, at a point."""

    point: str
    arms: tuple[str, ...]
    kinds: tuple[str, ...] = ("",)
    steps: int = SHORT


BLOCKS = (
    Block("weak", ("none", "kl_in_loss", "own_solved", "resample")),
    Block("weak", ("sft",), ("r80",)),
    Block("weak", ("sft_no_gate", "penalty_paper"), ("r80",)),
    Block("weak", ("sft",), ("r05", "r20", "r40", "r60", "r95")),
    Block("weak", ("none", "kl_in_loss"), steps=LONG),
    Block("weak", ("sft",), ("r80",), LONG),
    Block("steep", ("none", "kl_in_loss"), steps=LONG),
    Block("steep", ("sft",), ("r80",), LONG),
    Block("steep", ("own_solved", "resample")),
    Block("steep", ("sft",), ("r20",)),
    Block("weak", ("oracle", "kl_in_reward", "double")),
    Block("weak", ("lagrangian", "in_place", "penalty"), ("r80",)),
    Block("weak", ("sft", "sft_no_gate"), ("careless",)),
    Block("weak", ("sft",), ("early", "late")),
    Block("strong", ("none", "kl_in_loss", "own_solved", "resample")),
    Block("strong", ("sft",), ("r20", "r80")),
    Block("weak", ("sft_no_gate", "in_place"), ("r20",)),
)
"""The blocks in the order of their importance: if the budget does not suffice, the last ones are left out."""


def tuning() -> Iterator[Spec]:
    """Yield the runs that weights are chosen by: for every arm that is tuned at a point as many weights and seeds."""
    for point in POINTS:
        arms = dict.fromkeys(arm for block in BLOCKS if block.point == point for arm in block.arms if ARMS[arm].grid)
        for arm in arms:
            kind = TUNED_KIND if ARMS[arm].uses_refiner else ""
            for weight, seed in itertools.product(ARMS[arm].grid, TUNING_SEEDS):
                yield Spec(point, arm, kind, seed, SHORT, weight)


def counted(weights: dict[str, dict[str, float]]) -> Iterator[Spec]:
    """Yield the runs that count and whose weights are known, block by block, a seed at a time in each."""
    for block in BLOCKS:
        for seed in SEEDS:
            for arm in block.arms:
                known = weights.get(block.point, {})
                if ARMS[arm].grid and arm not in known:
                    continue
                for kind in block.kinds:
                    yield Spec(block.point, arm, kind, seed, block.steps, known.get(arm, 0.0))


def explored() -> Iterator[Spec]:
    """Yield runs that were added after the counted ones: with the gate, at the weight that was chosen without it."""
    for seed in SEEDS:
        yield Spec("weak", "sft", "r80", seed, SHORT, 1.0)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def spec_of(line: dict[str, Any]) -> Spec:
    """Return the run that a line is about."""
    return Spec(**{name: line[name] for name in Spec.__dataclass_fields__})


def outcome(line: dict[str, Any], steps: int = SHORT) -> float:
    """Return a run's outcome at a horizon: the mean share of held-out questions solved in its last fifth."""
    curve = {EVERY * (place + 1): value for place, value in enumerate(line["solved"])}
    return fmean(value for step, value in curve.items() if 0.8 * steps < step <= steps)


def choose(lines: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the weights with the best mean outcome in tuning; of equals the smaller one.

    An arm whose runs are not all there is left out.
    """
    found = {spec_of(line): outcome(line) for line in lines}
    chosen: dict[str, dict[str, float]] = {}
    specs = list(tuning())
    for point, arm in dict.fromkeys((spec.point, spec.arm) for spec in specs):
        own = [spec for spec in specs if (spec.point, spec.arm) == (point, arm)]
        if not all(spec in found for spec in own):
            continue
        means = {
            weight: fmean(found[spec] for spec in own if spec.weight == weight) for weight in sorted(ARMS[arm].grid)
        }
        chosen.setdefault(point, {})[arm] = max(means, key=lambda weight: means[weight])
    return chosen


def pairs_needed(lines: list[dict[str, Any]], effect: float, alpha: float, power: float) -> tuple[float, int]:
    """Return the standard deviation of the difference between two runs of a seed, and the pairs needed for an effect.

    The deviation is estimated from the tuning runs, after the effects of each arm's weight and each seed are removed.
    """
    squares, freedom = 0.0, 0
    for point in POINTS:
        arms: dict[tuple[str, float], list[float]] = {}
        for line in sorted(lines, key=lambda line: line["seed"]):
            if line["point"] == point:
                arms.setdefault((line["arm"], line["weight"]), []).append(outcome(line))
        if not (complete := [own for own in arms.values() if len(own) == len(TUNING_SEEDS)]):
            continue
        table = np.array(complete)
        table = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
        squares += (table**2).sum()
        freedom += (len(table) - 1) * (len(TUNING_SEEDS) - 1)
    deviation = math.sqrt(2 * squares / freedom)
    sure = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    return deviation, math.ceil((sure * deviation / effect) ** 2)


def read_weights() -> dict[str, dict[str, float]]:
    """Return the weights that tuning has chosen; empty before tuning."""
    return json.loads(WEIGHTS.read_text()) if WEIGHTS.exists() else {}
