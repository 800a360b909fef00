"""The runs: methods, grids of learning rates and weights, and the blocks that count (PROTOCOL.md)."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.lab.arms import FADING, NONE, Overrides, dynamic, kl_in_loss
from experiments.map.arms import DOUBLE, OWN
from experiments.map.design import read

RESULTS = Path(__file__).resolve().parents[1] / "results" / "rates"
STEP_TOKENS = 8 * 8 * 7
"""Tokens that one step writes without a constraint: 8 questions, 8 responses of 7 tokens."""
SHORT, LONG = 150 * STEP_TOKENS, 600 * STEP_TOKENS
"""Tokens that a run may write, the refiner's included: those of 150 and 600 steps without a constraint."""
EVERY = 25 * STEP_TOKENS
"""Tokens between two validations."""
RATES = (6.3e-5, 1.6e-4, 4e-4, 1e-3, 2.5e-3, 6.3e-3)
RATE_STEP, LOWEST_RATE, HIGHEST_RATE = 2.5, 1e-5, 4e-2
ETAS = (0.03, 0.1, 0.3, 1.0, 3.0)
SMALL_ETAS = (0.001, 0.003, 0.01, 0.03, 0.1)
LOWEST_WEIGHT, HIGHEST_WEIGHT = 1e-4, 31.0
TUNING_SEEDS = (901, 902)
MANY_TUNING_SEEDS = tuple(range(901, 911))
"""Tuning seeds of a method without a weight, so that each method is tuned by as many runs."""
TUNING_BASE, NUM_BASES = 4, 3
BEST_SEEDS, WIDTH_SEEDS = tuple(range(1, 31)), tuple(range(1, 22))
"""Multiples of three, so that each base has as many seeds."""
STATIC_KL_BESIDE = 0.03
UNSOLVED = "refiner.only_unsolved=true"


@dataclass(frozen=True, slots=True)
class Method:
    """One side of a comparison."""

    overrides: Callable[[float], Overrides]
    """The overrides of the product's configuration, by the method's weight."""
    weights: tuple[float, ...] = ()
    """The weights that tuning begins with; empty: the method has none."""
    source: str = "refiner"
    uses_refiner: bool = False


SFT = dynamic("sft", FADING)
METHODS = {
    "none": Method(lambda weight: NONE),
    "double": Method(lambda weight: (*NONE, *DOUBLE)),
    "static_kl": Method(kl_in_loss, (0.01, 0.03, 0.1, 0.3, 1.0)),
    "second_sample": Method(SFT, ETAS, source="resample"),
    "sft": Method(SFT, ETAS, uses_refiner=True),
    "sft_unsolved_2": Method(
        dynamic("sft", FADING, UNSOLVED, "refiner.max_refinements_per_group=2"), ETAS, uses_refiner=True
    ),
    "lagrangian": Method(dynamic("lagrangian", "constraint.credit=in_reward"), ETAS, uses_refiner=True),
    "own_solved": Method(dynamic("sft", FADING, *OWN), ETAS),
    "penalty_paper": Method(lambda weight: dynamic("penalty")(1e-3), uses_refiner=True),
    "second_sample_unsolved_2": Method(
        dynamic("sft", FADING, UNSOLVED, "refiner.max_refinements_per_group=2"), ETAS, source="resample"
    ),
    "sft_unsolved_1": Method(
        dynamic("sft", FADING, UNSOLVED, "refiner.max_refinements_per_group=1"), ETAS, uses_refiner=True
    ),
    "penalty": Method(dynamic("penalty"), SMALL_ETAS, uses_refiner=True),
    "in_place": Method(dynamic("penalty", "constraint.target=in_place"), ETAS, uses_refiner=True),
    "sft_and_static_kl": Method(
        lambda weight: (
            *SFT(weight),
            "actor_rollout_ref.actor.use_kl_loss=true",
            f"actor_rollout_ref.actor.kl_loss_coef={STATIC_KL_BESIDE}",
        ),
        ETAS,
        uses_refiner=True,
    ),
}
"""The methods by name. `double` has twice the questions a step; `penalty_paper` has the paper's eta, 0.001;
`unsolved_k`: only groups without a solved response are refined, at most k responses of each."""
MAIN = ("none", "double", "static_kl", "second_sample", "sft", "sft_unsolved_2", "lagrangian")
ALL_TUNED = {"strong": (*MAIN, "own_solved", "penalty_paper"), "weak": tuple(METHODS)}
"""The methods that are tuned and counted with each strength of pi_0, the most important first."""
WIDE = ALL_TUNED["strong"]
GUARDED = ("none", "static_kl", "second_sample", "sft", "lagrangian")
OTHER_KINDS = ("r20", "r40", "r60", "r95")
TRAINED_RULES = (0, 2, 3, 6)
"""reverse, swap, successor and sort_down, where a run is not about all rules."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A run."""

    strength: str
    method: str
    rate: float
    weight: float
    seed: int
    tokens: int = SHORT
    """How many tokens the run may write."""
    kind: str = "r80"
    """The kind of refiner, where the method has one; `taught`: pi_0 trained on its own accepted refinements."""
    task: str = "all"
    """`all` rules; `hole`: the verifier has one; `four`: trained on TRAINED_RULES, the others are watched."""

    @property
    def key(self) -> str:
        """The text that differs between any two runs."""
        return "/".join(str(getattr(self, name)) for name in Spec.__dataclass_fields__)

    @property
    def is_tuning(self) -> bool:
        """Whether the run tunes, and is thrown away afterwards."""
        return self.seed in MANY_TUNING_SEEDS

    @property
    def base_seed(self) -> int:
        """The seed of the base that the run begins with."""
        return TUNING_BASE if self.is_tuning else 1 + self.seed % NUM_BASES


@dataclass(slots=True)
class Tuned:
    """The results of a method's tuning runs, at one strength of pi_0."""

    means: dict[tuple[float, float], float] = field(default_factory=dict)
    """The mean outcome by (rate, weight)."""

    @property
    def best(self) -> tuple[float, float]:
        """The rate and the weight with the best mean outcome; of equals the smallest."""
        return max(sorted(self.means), key=lambda place: self.means[place])

    def weight_at(self, rate: float) -> float:
        """Return the weight with the best mean outcome at a rate; of equals the smallest."""
        own = sorted(weight for one, weight in self.means if one == rate)
        return max(own, key=lambda weight: self.means[rate, weight])


def spec_of(line: dict[str, Any]) -> Spec:
    """Return the run that a line is about."""
    return Spec(**{name: line[name] for name in Spec.__dataclass_fields__})


def outcome(line: dict[str, Any], tokens: int | None = None) -> float:
    """Return the mean share of held-out questions solved in the last fifth of the tokens.

    Args:
        line: A run.
        tokens: Where a longer run is read; None: at its end.
    """
    end = tokens or line["tokens"]
    values = [share for at, share in zip(line["at"], line["solved"], strict=True) if 0.8 * end < at <= end + EVERY // 5]
    return fmean(values)


def is_collapsed(line: dict[str, Any]) -> bool:
    """Return whether a run ends below pi_0, or below half of its own best validation."""
    end = outcome(line)
    return end < line["start"] or end < 0.5 * max(line["solved"])


def _grid(strength: str, method: str, rates: list[float], weights: list[float]) -> Iterator[Spec]:
    seeds = TUNING_SEEDS if METHODS[method].weights else MANY_TUNING_SEEDS
    for rate, weight, seed in itertools.product(rates, weights, seeds):
        yield Spec(strength, method, rate, weight, seed)


def tuned(strength: str, method: str, found: dict[Spec, float]) -> tuple[Tuned | None, list[Spec]]:
    """Return what the tuning of a method found, and the runs that are missing for that.

    A grid whose best value lies at an edge is widened there, rates by a factor of 2.5 and weights by three, until
    the best value lies inside or at the limits of the protocol.

    Args:
        strength: How strong pi_0 is.
        method: The method.
        found: Outcomes of the tuning runs so far.

    Returns:
        None with the missing runs, or the result and no run.
    """
    rates, weights = list(RATES), list(METHODS[method].weights or (0.0,))
    while True:
        specs = list(_grid(strength, method, rates, weights))
        if missing := [spec for spec in specs if spec not in found]:
            return None, missing
        result = Tuned()
        for rate, weight in itertools.product(rates, weights):
            own = [found[spec] for spec in specs if (spec.rate, spec.weight) == (rate, weight)]
            result.means[rate, weight] = fmean(own)
        if not _widen(result.best, rates, weights):
            return result, []


def _widen(best: tuple[float, float], rates: list[float], weights: list[float]) -> bool:
    """Add a value beyond each edge at which the best one lies, and return whether one was added."""
    before = len(rates) + len(weights)
    rate, weight = best
    if rate == rates[0] and rate / RATE_STEP >= LOWEST_RATE:
        rates.insert(0, float(f"{rate / RATE_STEP:.2g}"))
    if rate == rates[-1] and rate * RATE_STEP <= HIGHEST_RATE:
        rates.append(float(f"{rate * RATE_STEP:.2g}"))
    if weight and weight == weights[0] and weight / 3 >= LOWEST_WEIGHT:
        weights.insert(0, round(weight / 3, 5))
    if weight and weight == weights[-1] and weight * 3 <= HIGHEST_WEIGHT:
        weights.append(round(weight * 3, 5))
    return len(rates) + len(weights) > before


def outcomes(lines: list[dict[str, Any]]) -> dict[Spec, float]:
    """Return the outcome of each run."""
    return {spec_of(line): outcome(line) for line in lines}


def tuning(found: dict[Spec, float]) -> Iterator[Spec]:
    """Yield the tuning runs that are missing, one grid at a time."""
    for strength, methods in ALL_TUNED.items():
        for method in methods:
            yield from tuned(strength, method, found)[1]


def _at_best(strength: str, methods: tuple[str, ...], chosen: dict[tuple[str, str], Tuned], **more: Any) -> list[Spec]:
    return [
        Spec(strength, method, *chosen[strength, method].best, seed, **more)
        for seed in BEST_SEEDS
        for method in methods
        if (strength, method) in chosen
    ]


def _width(chosen: dict[tuple[str, str], Tuned]) -> list[Spec]:
    return [
        Spec("strong", method, rate, chosen["strong", method].weight_at(rate), seed)
        for seed in WIDTH_SEEDS
        for method in WIDE
        if ("strong", method) in chosen
        for rate in RATES
    ]


def counted(found: dict[Spec, float]) -> Iterator[Spec]:
    """Yield the runs that count, in the order of their blocks; a block begins when all its methods are tuned."""
    chosen: dict[tuple[str, str], Tuned] = {}
    for strength, methods in ALL_TUNED.items():
        for method in methods:
            result, missing = tuned(strength, method, found)
            if result is None:
                return  # blocks keep their order: nothing counts before all is tuned
            assert not missing
            chosen[strength, method] = result
    yield from _at_best("strong", ALL_TUNED["strong"], chosen)
    yield from _width(chosen)
    yield from _at_best("weak", ALL_TUNED["weak"], chosen)
    yield from _at_best("weak", MAIN, chosen, tokens=LONG)
    for kind in OTHER_KINDS:
        yield from _at_best("weak", ("sft",), chosen, kind=kind)
    yield from _at_best("weak", ("sft", "second_sample"), chosen, tokens=LONG, kind="taught")
    yield from _at_best("strong", GUARDED, chosen, tokens=2 * SHORT, task="hole")
    yield from _at_best("strong", GUARDED, chosen, task="four")


def lines_of(phase: str) -> list[dict[str, Any]]:
    """Return the committed lines of `tune` or `run`."""
    return read(RESULTS / f"{phase}.jsonl")
