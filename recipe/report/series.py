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
Row = dict[str, Any]


@dataclass(slots=True, kw_only=True, frozen=True)
class Quantity:
    """A curve of the report.

    Example: ``Quantity(metric="reward/mean", title="Task reward", unit="reward")``.
    """

    metric: str
    title: str
    unit: str
    measured: Callable[[Row], bool] = lambda row: True
    """Whether a step measured it: a metric that was not measured is 0, and 0 would be wrong."""
    otherwise: str = ""
    """The metric that stands in where a step lacks the first one."""
    from_zero: bool = True
    """Whether the axis starts at 0."""

    @property
    def slug(self) -> str:
        """Return a name for files and ids."""
        return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in self.metric)

    def value(self, row: Row) -> float | None:
        """Return the value of a step, if it has one."""
        return finite(row.get(self.metric, row.get(self.otherwise))) if self.measured(row) else None


def _if_any(metric: str) -> Callable[[Row], bool]:
    return lambda row: bool(row.get(metric))


REWARD = Quantity(
    metric="reward/mean", title="Task reward", unit="reward, mean over the responses of a step", from_zero=False
)
KL = Quantity(
    metric="kl_ref/k3",
    title="KL to the reference",
    unit="nats per token",
    measured=lambda row: row.get("tokens/kl_ref") != 0 or row.get("kl_ref/k3") != 0,
)
CE_ACCEPTED = Quantity(
    metric="constraint/cross_entropy_accepted",
    title="Cross-entropy of accepted refinements",
    unit="nats per token",
    measured=_if_any("constraint/cross_entropy_accepted"),
)
IMPROVEMENT = Quantity(
    metric="refiner/improvement_ratio",
    title="Improvement ratio",
    unit="accepted refinements / responses",
    measured=_if_any("refiner/num_attempted"),
)
SECONDS = Quantity(metric="timing_s/step", title="Time of a step", unit="s", measured=_if_any("timing_s/step"))
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
        measured=_if_any("constraint/penalty"),
    ),
)
"""The curves of every page. All other metrics are in metrics.jsonl and in verl's loggers."""


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
    curves = [
        {row["step"]: value for row in run.metrics if (value := quantity.value(row)) is not None} for run in arm.runs
    ]
    points = {
        step: stat([values[step] for values in curves if step in values])
        for step in sorted({step for values in curves for step in values})
    }
    return {step: point for step, point in points.items() if point}


def final(run: Run, quantity: Quantity) -> float | None:
    """Return a run's mean over its last steps; None if none of them measured it."""
    num_last = max(MIN_FINAL_STEPS, round(FINAL_SHARE * len(run.metrics)))
    return _mean(run.metrics[-num_last:], quantity)


def last(run: Run, quantity: Quantity) -> float | None:
    """Return the last value that a run measured."""
    return next((value for row in reversed(run.metrics) if (value := quantity.value(row)) is not None), None)


def over_all_steps(run: Run, quantity: Quantity) -> float | None:
    """Return the mean over a run's steps that measured it."""
    return _mean(run.metrics, quantity)


def _mean(rows: list[Row], quantity: Quantity) -> float | None:
    values = [value for row in rows if (value := quantity.value(row)) is not None]
    return statistics.fmean(values) if values else None


def over_runs(arm: Arm, quantity: Quantity, of_run: Callable[[Run, Quantity], float | None]) -> Stat | None:
    """Summarise one of the three functions above over the runs of an arm."""
    return stat([value for run in arm.runs if (value := of_run(run, quantity)) is not None])


def validations(runs: list[Run]) -> list[Quantity]:
    """Return the validation scores that verl holds for the main ones, of whatever data sets there are; means first.

    Their spreads over bootstrap samples (``best@N/std``: verl/trainer/ppo/metric_utils.py) are no scores.
    """
    names = {name for run in runs for row in run.metrics for name in row}
    return [
        Quantity(metric=name, title=name.removeprefix("val-core/"), unit="validation score", from_zero=False)
        for name in sorted(names, key=lambda name: ("/mean@" not in name, name))
        if name.startswith("val-core/") and not name.endswith("/std")
    ]
