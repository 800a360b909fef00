"""What the experiment decides by: set before its final runs, in a file that stands in the history before them.

Three phases: `calibrate` chooses the learning rate, `tune` the weights, both on seeds that are thrown away, `final`
compares. The file is `docs/results/protocol.yaml`; a phase completes it for the next one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

import yaml

from recipe.lab.arms import ALGORITHMS, TUNED, Overrides, arms, kl_in_loss

SEED_KEYS = ("data.seed", "actor_rollout_ref.rollout.seed", "actor_rollout_ref.actor.data_loader_seed")
HELD_OUT = "val-core/mini_apps/acc/mean@8"
"""Share of solved answers, 8 to each held-out problem, at temperature 1."""


@dataclass(slots=True, kw_only=True)
class Protocol:
    """The rules of one experiment. Null: not chosen yet."""

    num_steps: int = 20
    outcome_steps: list[int] = field(default_factory=lambda: [10, 15, 20])
    """The outcome of a run is the mean of `HELD_OUT` at these steps."""
    collapse: float = 0.15
    """A run collapses if `HELD_OUT` falls by more than that from its maximum."""
    learning_rates: list[float] = field(default_factory=lambda: [2.5e-4, 5e-4, 1e-3, 2e-3])
    """Tried with verl's static KL at its default weight; the lowest that makes a run collapse is taken (the paper's
    A.1), or the highest if none does."""
    default_kl: float = 0.001
    calibration_seeds: list[int] = field(default_factory=lambda: [101, 102])
    learning_rate: float | None = None
    tuning_seeds: list[int] = field(default_factory=lambda: [111, 112])
    weights: dict[str, float] | None = None
    """Of each method, the one with the best mean outcome of the tuning seeds; of equals the smaller one."""
    seeds: dict[str, list[int]] = field(default_factory=lambda: {"dapo": [1, 2, 3, 4, 5, 6], "ppo": [1, 2, 3, 4]})
    ppo_arms: list[str] = field(default_factory=lambda: ["none", "kl_in_loss", "sft", "lagrangian"])
    contrasts: list[list[str]] = field(
        default_factory=lambda: [["sft", "kl_in_loss"], ["sft", "sft_no_gate"], ["sft", "none"]]
    )
    """Differences of mean outcomes that are tested, the p-values corrected together (Holm): dynamic - static KL, gate -
    no gate, dynamic - none."""

    def runs(self, phase: str) -> Iterator[tuple[str, Overrides]]:
        """Yield the name and the overrides of each run of a phase, seed by seed.

        Raises:
            ValueError: If the phase before has not been completed.
        """
        if phase == "calibrate":
            for seed in self.calibration_seeds:
                for rate in self.learning_rates:
                    yield f"lr{rate:g}-seed{seed}", (*kl_in_loss(self.default_kl), *self._common("dapo", seed, rate))
            return
        if self.learning_rate is None:
            raise ValueError("the protocol has no learning_rate: run calibrate first")
        if phase == "tune":
            for seed in self.tuning_seeds:
                for name, (overrides, weights) in TUNED.items():
                    for weight in weights:
                        common = self._common("dapo", seed, self.learning_rate)
                        yield f"{name}-{weight:g}-seed{seed}", (*overrides(weight), *common)
            return
        if self.weights is None:
            raise ValueError("the protocol has no weights: run tune first")
        every = arms(self.weights)
        for algorithm, seeds in self.seeds.items():
            for seed in seeds:
                for name in every if algorithm == "dapo" else self.ppo_arms:
                    common = self._common(algorithm, seed, self.learning_rate)
                    yield f"{algorithm}-{name}-seed{seed}", (*every[name], *common)

    def _common(self, algorithm: str, seed: int, rate: float) -> Overrides:
        seeds = (f"{key}={seed}" for key in SEED_KEYS)
        return (*ALGORITHMS[algorithm], f"actor_rollout_ref.actor.optim.lr={rate}", *seeds)

    def outcome(self, held_out: Mapping[int, float]) -> float:
        """Return the outcome of a run, from its held-out share by step."""
        return fmean(held_out[step] for step in self.outcome_steps)

    def collapses(self, held_out: Mapping[int, float]) -> bool:
        """Tell whether a run collapses."""
        shares = [held_out[step] for step in sorted(held_out)]
        return any(max(shares[: place + 1]) - share > self.collapse for place, share in enumerate(shares))

    def choose_learning_rate(self, found: Mapping[str, Mapping[int, float]]) -> float:
        """Return the learning rate that the calibration's runs speak for, by their names."""
        for rate in sorted(self.learning_rates):
            if any(self.collapses(found[f"lr{rate:g}-seed{seed}"]) for seed in self.calibration_seeds):
                return rate
        return max(self.learning_rates)

    def choose_weights(self, found: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
        """Return the weights that the tuning's runs speak for."""

        def mean(name: str, weight: float) -> float:
            return fmean(self.outcome(found[f"{name}-{weight:g}-seed{seed}"]) for seed in self.tuning_seeds)

        return {
            name: max(sorted(weights), key=lambda weight, name=name: mean(name, weight))  # type: ignore[misc]
            for name, (_, weights) in TUNED.items()
        }


def held_out(steps: Sequence[Mapping[str, float]]) -> dict[int, float]:
    """Return a run's held-out share by step, from its metrics."""
    return {int(row["step"]): row[HELD_OUT] for row in steps if row.get(HELD_OUT) is not None}


def read(path: Path) -> Protocol:
    """Return the protocol in a file; the default one if there is none."""
    return Protocol(**yaml.safe_load(path.read_text())) if path.exists() else Protocol()


def write(protocol: Protocol, path: Path) -> None:
    """Write a protocol."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(asdict(protocol), sort_keys=False))
