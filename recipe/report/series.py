"""The numbers of a report: curves and final values, mean and spread over the runs (seeds) of an arm."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recipe.report.arms import Arm
from recipe.report.runs import Run, finite

FINAL_SHARE = 0.1
MIN_FINAL_STEPS = 3
"""A final value is a run's mean over its last tenth of steps, and over 3 at least."""


@dataclass(slots=True, kw_only=True, frozen=True)
class Quantity:
    """A curve of the report.

    Example: ``Quantity(metric="reward/mean", title="Task reward", unit="reward")``.
    """

    metric: str
    title: str
    unit: str
    measured_if: tuple[str, ...] = ()
    """A step measured it if one of these is not 0: a metric that was not measured is 0, and 0 would be wrong."""
    otherwise: str = ""
    """The metric that stands in where a step lacks the first one."""
    from_zero: bool = True
    """Whether the axis starts at 0."""

    def value(self, row: dict[str, Any]) -> float | None:
        """Return the value of a step, if it has one."""
        if self.measured_if and not any(row.get(name) for name in self.measured_if):
            return None
        return finite(row.get(self.metric, row.get(self.otherwise)))


REWARD = Quantity(
    metric="reward/mean", title="Task reward", unit="reward, mean over the responses of a step", from_zero=False
)
KL = Quantity(
    metric="kl_ref/k3",
    title="KL to the reference",
    unit="nats per token",
    measured_if=("tokens/kl_ref", "kl_ref/k3"),
)
CE_ACCEPTED = Quantity(
    metric="constraint/cross_entropy_accepted",
    title="Cross-entropy of accepted refinements",
    unit="nats per token",
    measured_if=("constraint/cross_entropy_accepted",),
)
IMPROVEMENT = Quantity(
    metric="refiner/improvement_ratio",
    title="Improvement ratio",
    unit="accepted refinements / responses",
    measured_if=("refiner/num_attempted",),
)
SECONDS = Quantity(metric="timing_s/step", title="Time of a step", unit="s")
QUANTITIES = (
    REWARD,
    KL,
    Quantity(metric="response_length/mean", title="Length of responses", unit="tokens"),
    Quantity(
        metric="actor/entropy",
        title="Entropy of the policy",
        unit="nats per token",
        otherwise="actor/entropy_loss",  # measured by the update, where no stage before it computes log-probs
    ),
    CE_ACCEPTED,
    IMPROVEMENT,
    Quantity(
        metric="constraint/penalty",
        title="Constraint penalty",
        unit="reward per response token",
        from_zero=False,
        measured_if=("constraint/penalty",),
    ),
)
"""The curves of every page, beside validation. All other metrics are in metrics.jsonl and in verl's loggers."""


def validations(runs: list[Run]) -> list[Quantity]:
    """Return the mean scores of validation, of whatever data sets there are."""
    names = {name for run in runs for row in run.metrics for name in row}
    return [
        Quantity(metric=name, title=name.removeprefix("val-core/"), unit="validation score", from_zero=False)
        for name in sorted(names)
        if name.startswith("val-core/") and "/mean@" in name
    ]


@dataclass(slots=True, kw_only=True, frozen=True)
class Stat:
    """A value over the runs of an arm.

    Example: 0.1 and 0.3 are ``Stat(mean=0.2, spread=0.1414)``.
    """

    mean: float
    spread: float | None
    """Sample standard deviation (n - 1); None of a single run."""


def stat(values: list[float]) -> Stat | None:
    """Summarise one value a run; None of no values."""
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Stat(mean=statistics.fmean(values), spread=spread)


def curve(arm: Arm, quantity: Quantity) -> dict[int, Stat]:
    """Return an arm's curve by step, over the runs that have a value there."""
    found: dict[int, list[float]] = {}
    for row in (row for run in arm.runs for row in run.metrics):
        if (value := quantity.value(row)) is not None:
            found.setdefault(row["step"], []).append(value)
    return {step: point for step, values in sorted(found.items()) if (point := stat(values))}


def final(values: list[float | None]) -> float | None:
    """Return the mean over a run's last steps; None if none of them measured it."""
    return over_all_steps(values[-max(MIN_FINAL_STEPS, round(FINAL_SHARE * len(values))) :])


def last(values: list[float | None]) -> float | None:
    """Return the last value that a run measured."""
    return next((value for value in reversed(values) if value is not None), None)


def over_all_steps(values: list[float | None]) -> float | None:
    """Return the mean over a run's steps that measured it."""
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None


def over_runs(arm: Arm, quantity: Quantity, of_run: Callable[[list[float | None]], float | None]) -> Stat | None:
    """Summarise one of the three functions above, of a quantity by step, over the runs of an arm."""
    found = (of_run([quantity.value(row) for row in run.metrics]) for run in arm.runs)
    return stat([value for value in found if value is not None])
