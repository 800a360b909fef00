"""The rules of the experiment, which were set and committed before its final runs.

Three phases: `calibrate` chooses the learning rate, `tune` the weights, both on seeds that are thrown away, `final`
compares. The lab's file is `experiments/results/lab.yaml`; a phase completes it for the next one.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import yaml

from experiments.lab.arms import ALGORITHMS, STATIC, TUNED, UNTUNED, Overrides, arms, kl_in_loss

SEED_KEYS = ("data.seed", "actor_rollout_ref.rollout.seed", "actor_rollout_ref.actor.data_loader_seed")
HELD_OUT = "val-core/mini_apps/acc/mean@4"
"""The share of solved answers, 4 to each held-out problem, at temperature 1."""


@dataclass(slots=True, kw_only=True)
class Protocol:
    """The rules of one experiment. Null: not chosen yet."""

    experiment: str = "lab"
    """The preset that the overrides of a run are for."""
    held_out: list[str] = field(default_factory=lambda: [HELD_OUT])
    """The metrics whose mean is the held-out share."""
    num_steps: int = 20
    outcome_steps: list[int] = field(default_factory=lambda: [10, 15, 20])
    """The outcome of a run is its mean held-out share at these steps."""
    before: float = 0.13
    """The held-out share of the base model (its rates.json)."""
    collapse: float = 0.15
    """A run collapses if its held-out share falls by more than that from its maximum, or ends below `before`."""
    learning_rates: list[float] = field(default_factory=lambda: [2.5e-4, 5e-4, 1e-3])
    """The learning rates that are tried, with verl's static KL at its default weight.

    The lowest rate at which the policy begins to degenerate is chosen (the paper's A.1): its mean outcome is lower than
    a smaller rate's by more than `collapse`. If there is none, the highest rate is chosen.
    """
    default_kl: float = 0.001
    calibration_seeds: list[int] = field(default_factory=lambda: [101, 102])
    learning_rate: float | None = None
    tuning_seeds: list[int] = field(default_factory=lambda: [111, 112])
    tried: dict[str, list[float]] = field(
        default_factory=lambda: {name: list(weights) for name, (_, weights) in TUNED.items()}
    )
    """The weights that are tried for each method, the same number for each."""
    weights: dict[str, float] | None = None
    """The chosen weight of each method: the best mean outcome over the tuning seeds, at a tie the smaller weight.

    A method that is not tried keeps its own weight.
    """
    seeds: dict[str, list[int]] = field(default_factory=lambda: {"dapo": [1, 2, 3, 4, 5, 6], "ppo": [1, 2, 3, 4]})
    few_seeds: dict[str, int] = field(default_factory=lambda: {"sft_rescue": 3})
    """Arms that are not part of the main question, with the number of seeds that each has."""
    arms: dict[str, list[str] | None] = field(default_factory=lambda: {"dapo": list(UNTUNED), "ppo": None})
    """The arms of the final phase, by algorithm.

    Before they are chosen: `none`, and by their outcome in tuning the best static KL and the two best dynamic
    constraints.
    """
    contrasts: list[list[str]] | None = None
    """The pairs of arms whose mean outcomes are compared; the p-values are corrected together (Holm).

    Before they are chosen: the best dynamic constraint and the best static KL in tuning, sft with and without its gate,
    and the best dynamic constraint and none.
    """

    @property
    def is_tuned(self) -> bool:
        """Whether the weights of all methods are chosen."""
        return self.weights is not None and self.tried.keys() <= self.weights.keys()

    def runs(self, phase: str) -> Iterator[tuple[str, Overrides]]:
        """Yield the name and the overrides of each run of a phase, seed by seed.

        Raises:
            ValueError: If the phase before has not been completed.
        """
        if phase != "calibrate" and self.learning_rate is None:
            raise ValueError("the protocol has no learning_rate: run calibrate first")
        if phase != "final":
            yield from ((name, overrides) for _, _, name, overrides in self._tried(phase) if overrides)
            return
        if not self.is_tuned:
            raise ValueError("the protocol has no weights of what it tries: run tune first")
        every = arms(self.weights or {})
        for algorithm, seeds in self.seeds.items():
            for place, seed in enumerate(seeds):
                for name in self.arms[algorithm] or ():
                    if name in every and place < self.few_seeds.get(name, len(seeds)):
                        common = self._common(algorithm, seed, self.learning_rate)
                        yield f"{algorithm}-{name}-seed{seed}", (*every[name], *common)

    def _common(self, algorithm: str, seed: int, rate: float | None) -> Overrides:
        seeds = (f"{key}={seed}" for key in SEED_KEYS)
        return (*ALGORITHMS[algorithm], f"actor_rollout_ref.actor.optim.lr={rate}", *seeds)

    def _tried(self, phase: str) -> Iterator[tuple[str, float, str, Overrides]]:
        """Yield (the choice, the value tried, the run's name, its overrides) for each run of `calibrate` or `tune`.

        A method of the committed runs whose keys no longer exist has no overrides.
        """
        algorithm = next(iter(self.seeds))  # that learning rate and weights are chosen with
        if phase == "calibrate":
            for seed, rate in itertools.product(self.calibration_seeds, self.learning_rates):
                overrides = (*kl_in_loss(self.default_kl), *self._common(algorithm, seed, rate))
                yield "learning rate", rate, f"lr{rate:g}-seed{seed}", overrides
            return
        for seed, (name, weights) in itertools.product(self.tuning_seeds, self.tried.items()):
            common = self._common(algorithm, seed, self.learning_rate)
            for weight in weights:
                overrides = (*TUNED[name][0](weight), *common) if name in TUNED else ()
                yield name, weight, f"{name}-{weight:g}-seed{seed}", overrides

    def trials(self, phase: str) -> dict[str, dict[float, list[str]]]:
        """Return the names of the runs that `calibrate` or `tune` chooses by: for each choice, by the value tried."""
        found: dict[str, dict[float, list[str]]] = {}
        for choice, value, name, _ in self._tried(phase):
            found.setdefault(choice, {}).setdefault(value, []).append(name)
        return found

    def mean_outcome(self, found: Mapping[str, Mapping[int, float]], names: Iterable[str]) -> float:
        """Return the mean outcome of runs, from all runs' held-out shares."""
        return fmean(self.outcome(found[name]) for name in names)

    def held_out_of(self, steps: Iterable[Mapping[str, float]]) -> dict[int, float]:
        """Return a run's held-out share by step, from its metrics."""
        found = ((int(row["step"]), [row.get(name) for name in self.held_out]) for row in steps)
        return {step: fmean(shares) for step, shares in found if None not in shares}  # type: ignore[arg-type]

    def outcome(self, held_out: Mapping[int, float]) -> float:
        """Return the outcome of a run, from its held-out share by step."""
        return fmean(held_out[step] for step in self.outcome_steps)

    def collapses(self, held_out: Mapping[int, float]) -> bool:
        """Return whether a run collapses."""
        shares = [self.before, *(held_out[step] for step in sorted(held_out))]
        falls = (max(shares[: place + 1]) - share for place, share in enumerate(shares))
        return max(falls) > self.collapse or shares[-1] < self.before

    def choose_learning_rate(self, found: Mapping[str, Mapping[int, float]]) -> float:
        """Return the learning rate that the calibration's runs, given by name, lead to."""
        best = 0.0
        for rate, names in sorted(self.trials("calibrate")["learning rate"].items()):
            mean = self.mean_outcome(found, names)
            if best - mean > self.collapse:
                return rate
            best = max(best, mean)
        return max(self.learning_rates)

    def learn_from_tuning(self, found: Mapping[str, Mapping[int, float]]) -> None:
        """Choose weights, arms and contrasts by the tuning's runs, by their names."""
        best: dict[str, tuple[float, float]] = {}  # outcome and weight
        for name, by_weight in self.trials("tune").items():
            for weight, names in sorted(by_weight.items()):
                mean = self.mean_outcome(found, names)
                best[name] = max(best.get(name, (mean, weight)), (mean, weight), key=lambda those: those[0])
        self.weights = {**(self.weights or {}), **{name: weight for name, (_, weight) in best.items()}}
        if self.contrasts and all(self.arms.values()):
            return
        ranking = sorted(best, key=lambda name: -best[name][0])
        static = next(name for name in ranking if name in STATIC)
        dynamic = [name for name in ranking if name not in STATIC]
        for algorithm, given in self.arms.items():
            self.arms[algorithm] = given or ["none", static, *dynamic[:2]]
        self.contrasts = self.contrasts or [[dynamic[0], static], ["sft", "sft_no_gate"], [dynamic[0], "none"]]


def read(path: Path) -> Protocol:
    """Return the protocol in a file; the default one if there is none."""
    return Protocol(**yaml.safe_load(path.read_text())) if path.exists() else Protocol()


def write(protocol: Protocol, path: Path) -> None:
    """Write a protocol."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(asdict(protocol), sort_keys=False))
