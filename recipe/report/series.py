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
MAX_RAW_STEPS = 50
"""A longer curve is drawn as a running mean."""
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
    """Whether a step measured it: metrics that were not are 0 in every step, and 0 would be wrong."""
    otherwise: str = ""
    """The metric that tells it where a step lacks the first one."""
    from_zero: bool = True
    """Whether the axis starts at 0: what cannot be negative is compared by its height."""

    @property
    def slug(self) -> str:
        """Return a name for files and ids."""
        return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in self.metric)

    def value(self, row: Row) -> float | None:
        """Return the value of a step, if it has one."""
        return finite(row.get(self.metric, row.get(self.otherwise))) if self.measured(row) else None


def _positive(metric: str) -> Callable[[Row], bool]:
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
    measured=_positive("constraint/cross_entropy_accepted"),
)
IMPROVEMENT = Quantity(
    metric="refiner/improvement_ratio",
    title="Improvement ratio",
    unit="accepted refinements / responses",
    measured=_positive("refiner/num_attempted"),
)
QUANTITIES = (
    REWARD,
    KL,
    Quantity(metric="response_length/mean", title="Length of responses", unit="tokens"),
    Quantity(metric="response_length/clip_ratio", title="Cut responses", unit="share of responses"),
    Quantity(
        metric="actor/entropy",
        title="Entropy of the policy",
        unit="nats per token",
        otherwise="actor/entropy_loss",  # of the update, where the rollout's log-probs are taken for the old ones
    ),
    Quantity(
        metric="constraint/cross_entropy_all",
        title="Cross-entropy of all refinements",
        unit="nats per token",
        measured=_positive("constraint/cross_entropy_all"),
    ),
    CE_ACCEPTED,
    IMPROVEMENT,
    Quantity(metric="reward/group_std", title="Reward spread within a group", unit="standard deviation of reward"),
    Quantity(
        metric="constraint/divergence",
        title="Divergence D (Eq. 5)",
        unit="nats per response",
        measured=lambda row: row.get("constraint/divergence", 0) > 0 or row.get("refiner/num_accepted") == 0,
    ),
    Quantity(
        metric="constraint/penalty",
        title="Constraint penalty",
        unit="reward per response token",
        from_zero=False,
        measured=lambda row: bool(
            row.get("constraint/eta") and (row.get("constraint/penalty") or not row.get("actor/sft_cross_entropy"))
        ),
    ),
)


@dataclass(slots=True, kw_only=True, frozen=True)
class Stat:
    """A value over the runs of an arm.

    Example: 0.1 and 0.3 are ``Stat(mean=0.2, spread=0.1414, low=0.1, high=0.3, num_runs=2)``.
    """

    mean: float
    spread: float | None
    """Sample standard deviation (n - 1); None of a single run."""
    low: float
    high: float
    num_runs: int


def stat(values: list[float]) -> Stat | None:
    """Summarise one value a run; None of no values."""
    if not values:
        return None
    return Stat(
        mean=statistics.fmean(values),
        spread=statistics.stdev(values) if len(values) > 1 else None,
        low=min(values),
        high=max(values),
        num_runs=len(values),
    )


def running_mean(run: Run, quantity: Quantity, window: int) -> dict[int, float]:
    """Return a run's curve by step: the mean of the values of the last `window` steps, where the step has one."""
    values = {row["step"]: value for row in run.metrics if (value := quantity.value(row)) is not None}
    return {
        step: statistics.fmean(values[past] for past in range(step - window + 1, step + 1) if past in values)
        for step in values
    }


def curve(arm: Arm, quantity: Quantity, window: int) -> dict[int, Stat]:
    """Return an arm's curve by step, over the runs that have a value there."""
    curves = [running_mean(run, quantity, window) for run in arm.runs]
    points = {
        step: stat([values[step] for values in curves if step in values])
        for step in sorted({step for values in curves for step in values})
    }
    return {step: point for step, point in points.items() if point}


def final(arm: Arm, quantity: Quantity) -> Stat | None:
    """Return the final value over the runs of an arm."""
    finals = (final_of(run, quantity) for run in arm.runs)
    return stat([value for value in finals if value is not None])


def final_of(run: Run, quantity: Quantity) -> float | None:
    """Return a run's mean over its last steps; None if none of them measured it."""
    num_last = max(MIN_FINAL_STEPS, round(FINAL_SHARE * len(run.metrics)))
    values = [value for row in run.metrics[-num_last:] if (value := quantity.value(row)) is not None]
    return statistics.fmean(values) if values else None


def last(arm: Arm, quantity: Quantity) -> Stat | None:
    """Return the last value that each run measured, over the runs of an arm."""
    measured = ([value for row in run.metrics if (value := quantity.value(row)) is not None] for run in arm.runs)
    return stat([values[-1] for values in measured if values])


def over_all_steps(arm: Arm, quantity: Quantity) -> Stat | None:
    """Return the mean over a run's steps, over the runs of an arm."""
    rows = ([quantity.value(row) for row in run.metrics] for run in arm.runs)
    means = ([value for value in values if value is not None] for values in rows)
    return stat([statistics.fmean(values) for values in means if values])


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


def smoothing(runs: list[Run]) -> int:
    """Return over how many steps curves are averaged to be readable: 1 up to 50 steps, then a fortieth of them."""
    num_steps = max(len(run.metrics) for run in runs)
    return 1 if num_steps <= MAX_RAW_STEPS else num_steps // 40
