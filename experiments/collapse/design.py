"""The design of the collapse experiment: its runs phase by phase, its outcomes and its contrasts (see PROTOCOL.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.lab.arms import ALGORITHMS, LIKE, NONE, TUNED, Overrides, kl_in_loss
from experiments.lab.protocol import SEED_KEYS

EXPERIMENT = "lab_sums"
HELD_OUT = "val-core/reasoning_gym/chain_sum/acc/mean@4"
NUM_STEPS = 24
VALIDATIONS = (0, 4, 8, 12, 16, 20, 24)
END = (20, 24)
"""The steps whose mean validation is a run's end: one validation of 280 answers has a standard error of 0.03."""
COMMON: Overrides = (
    f"trainer.total_training_steps={NUM_STEPS}",
    "trainer.val_before_train=true",
    "trainer.test_freq=4",
    f"trainer.save_freq={NUM_STEPS}",
    "trainer.resume_mode=disable",
    "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",  # what the log-loss is measured on
)
RATES = (2e-5, 5e-5, 1e-4, 2e-4)
WIDER = (4e-4, 8e-4)
"""The rates that are tried, one after the other, if static KL collapses at none of `RATES`."""
CALIBRATION_SEED = 201
CALIBRATION_KL = 0.01
"""The weight that tuning chose on this task at 2e-5 (results/lab_sums.yaml)."""
KL_WEIGHTS = (0.01, 0.1, 1.0)
TUNING_SEEDS = (211, 212)
SEEDS = tuple(range(1, 9))


def sft(eta: float) -> Overrides:
    """Return the overrides of imitating better refinements."""
    return TUNED["sft"][0](eta)


ARMS: dict[str, Overrides] = {
    "none": NONE,
    **{f"static_kl_{weight:g}": kl_in_loss(weight) for weight in KL_WEIGHTS},
    "sft_1": sft(1.0),
    "second_sample_1": ("control=resample", *sft(1.0)),
    "own_solved_1": (*sft(1.0), *LIKE["sft"]["own_solved"]),
    "lagrangian_1": TUNED["lagrangian"][0](1.0),
    "sft_0.1": sft(0.1),
}
"""The arms of the final phase: the overrides of the lab's preset by the arm's name."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A planned comparison of two arms by one outcome; `static_kl` is the weight that tuning chose."""

    outcome: str
    first: str
    second: str


CONTRASTS = (
    Contrast("collapsed", "sft_1", "static_kl"),
    Contrast("collapsed", "sft_1", "none"),
    Contrast("collapsed", "second_sample_1", "static_kl"),
    Contrast("collapsed", "sft_1", "second_sample_1"),
    Contrast("collapsed", "sft_1", "own_solved_1"),
    Contrast("collapsed", "lagrangian_1", "static_kl"),
    Contrast("end", "sft_1", "static_kl"),
    Contrast("end", "sft_1", "second_sample_1"),
    Contrast("log_loss", "sft_1", "static_kl"),
)
Line = Mapping[str, Any]
"""A run as it is committed: `run`, `arm`, `rate`, `seed`, `held_out` by step, `kl`, `log_loss`, `minutes`."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the trainer."""

    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """The run's name in its line and its folder."""
        return f"{self.arm}-lr{self.rate:g}-seed{self.seed}"

    @property
    def overrides(self) -> list[str]:
        """The overrides of the trainer's configuration."""
        seeds = [f"{key}={self.seed}" for key in SEED_KEYS]
        rate = f"actor_rollout_ref.actor.optim.lr={self.rate}"
        return [f"experiment={EXPERIMENT}", *ALGORITHMS["grpo"], *COMMON, *ARMS[self.arm], rate, *seeds]


def jobs_of(phase: str, lines: Mapping[str, Sequence[Line]]) -> list[Job]:
    """Return the runs of a phase in their order.

    Args:
        phase: `calibrate`, `tune` or `final`.
        lines: The committed lines of each phase.

    Raises:
        ValueError: If a phase before this one is not complete.
    """
    if phase == "calibrate":
        rates = [*RATES, *wider(lines["calibrate"])]
        return [Job(arm, rate, CALIBRATION_SEED) for rate in rates for arm in ("none", f"static_kl_{CALIBRATION_KL:g}")]
    rate = chosen_rate(lines["calibrate"])
    if phase == "tune":
        return [Job(f"static_kl_{weight:g}", rate, seed) for seed in TUNING_SEEDS for weight in KL_WEIGHTS]
    chosen_kl(lines["tune"])
    return [Job(arm, rate, seed) for seed in SEEDS for arm in ARMS]


def wider(lines: Sequence[Line]) -> list[float]:
    """Return the rates beyond `RATES` that the calibration's rule asks for, given the runs that are complete."""
    rates = [*RATES]
    for rate in WIDER:
        if len(_both(lines, rates[-1])) < 2 or any(all(_both(lines, lower)) for lower in rates):
            break
        rates.append(rate)
    return rates[len(RATES) :]


def _both(lines: Sequence[Line], rate: float) -> list[bool]:
    """Return for each calibration run at a rate whether it collapsed."""
    return [collapsed(line) for line in lines if line["rate"] == rate]


def chosen_rate(lines: Sequence[Line]) -> float:
    """Return the lowest rate at which both calibration runs collapse.

    Raises:
        ValueError: If calibration is not complete, or no rate makes both runs collapse.
    """
    for rate in (*RATES, *WIDER):
        if len(_both(lines, rate)) < 2:
            raise ValueError(f"{rate:g} has not been calibrated: run `python -m experiments.collapse calibrate` first")
        if all(_both(lines, rate)):
            return rate
    raise ValueError(f"both calibration runs collapse at no rate up to {WIDER[-1]:g}: the experiment ends here")


def chosen_kl(lines: Sequence[Line]) -> str:
    """Return the arm of static KL with the highest mean end in tuning; of equal ones the smallest weight.

    Raises:
        ValueError: If tuning is not complete.
    """
    ends = {f"static_kl_{weight:g}": list[float]() for weight in KL_WEIGHTS}
    for line in lines:
        ends[line["arm"]].append(end(line))
    if any(len(values) < len(TUNING_SEEDS) for values in ends.values()):
        raise ValueError("static KL has not been tuned: run `python -m experiments.collapse tune` first")
    return max(ends, key=lambda arm: fmean(ends[arm]))


def end(line: Line) -> float:
    """Return the mean held-out share at the last two validations."""
    return fmean(line["held_out"][str(step)] for step in END)


def best(line: Line) -> float:
    """Return the highest held-out share of a run, that before training included."""
    return max(line["held_out"].values())


def collapsed(line: Line) -> bool:
    """Return whether a run ends below half of its best validation, or below the validation before training."""
    return end(line) < best(line) / 2 or end(line) < line["held_out"]["0"]
