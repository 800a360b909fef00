"""Arms against the first one, over their seeds: what can be told from so few."""

from dataclasses import dataclass

from recipe.report import series
from recipe.report.arms import Arm
from recipe.report.series import Quantity
from recipe.report.statistics import holm, improvement, interquartile_mean, interval, permutation_p

Interval = tuple[float, float, float]
"""A value, and the ends of its 95 % interval."""


@dataclass(slots=True, kw_only=True)
class Compared:
    """An arm and the final values of its runs.

    Example: ``Compared(place=1, values=[0.4, 0.6], middle=(0.5, 0.4, 0.6), better=(1.0, 1.0, 1.0), p=0.33)``.
    """

    place: int
    """Of the arm among all."""
    values: list[float]
    middle: Interval
    """Their interquartile mean."""
    better: Interval | None
    """Probability that a run of it is above one of the first arm; None of that itself."""
    p: float | None = None
    """Of the difference to the first arm, corrected for all of them (Holm)."""


def compare(arms: list[Arm], quantity: Quantity) -> list[Compared]:
    """Compare the final values of arms that have two runs at least; nothing if these are not two arms."""
    found = {place: [series.final_of(run, quantity) for run in arm.runs] for place, arm in enumerate(arms)}
    known = {place: [value for value in values if value is not None] for place, values in found.items()}
    known = {place: values for place, values in known.items() if len(values) > 1}
    if len(known) < 2:
        return []
    first = next(iter(known.values()))
    lines = [
        Compared(
            place=place,
            values=values,
            middle=interval(interquartile_mean, values),
            better=None if values is first else interval(improvement, values, first),
        )
        for place, values in known.items()
    ]
    corrected = holm({str(line.place): permutation_p(line.values, first) for line in lines[1:]})
    for line in lines[1:]:
        line.p = corrected[str(line.place)]
    return lines
