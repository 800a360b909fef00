"""From the committed metrics of the final runs and the protocol to every number of docs/results.md."""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from recipe.lab.protocol import HELD_OUT, Protocol
from recipe.report.statistics import holm, improvement, interquartile_mean, interval, permutation_p

NUM_LAST = 5
SIDE = {
    "reward/mean": "reward",
    "response_length/mean": "tokens an answer",
    "kl_ref/k3": "KL",
    "refiner/improvement_ratio": "accepted a rollout",
}
"""What else is told of an arm, means over the last steps: column of the CSV, and of the table."""


@dataclass(slots=True, kw_only=True)
class LabRun:
    """The metrics of one run, by step."""

    arm: str
    held_out: dict[int, float] = field(default_factory=dict)
    side: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """All values of a column, in order."""


def read(path: Path) -> list[LabRun]:
    """Read what a report has written of the runs (`curves.csv`)."""
    runs: dict[str, LabRun] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            run = runs.setdefault(row["run"], LabRun(arm=row["arm"]))
            if row.get(HELD_OUT):
                run.held_out[int(row["step"])] = float(row[HELD_OUT])
            for name in SIDE:
                if row.get(name):
                    run.side[name].append(float(row[name]))
    return list(runs.values())


def tables(rules: Protocol, runs: Sequence[LabRun]) -> str:
    """Return the page's tables in Markdown: for each algorithm its arms, then the contrasts."""
    by_algorithm: dict[str, dict[str, list[LabRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        algorithm, _, arm = run.arm.partition("-")
        by_algorithm[algorithm][arm].append(run)
    parts = []
    for algorithm, arms in by_algorithm.items():
        parts += [f"**{algorithm.upper()}**", _arms(rules, arms), _contrasts(rules, arms)]
    return "\n\n".join(parts) + "\n"


def _arms(rules: Protocol, arms: Mapping[str, Sequence[LabRun]]) -> str:
    outcomes = {name: [rules.outcome(run.held_out) for run in runs] for name, runs in arms.items()}
    rows = [["arm", "seeds", "outcome", "P(above `none`)", "lowest seed", "collapsed", *SIDE.values()]]
    for name, runs in arms.items():
        better = (
            ""
            if name == "none" or "none" not in arms
            else _with_interval(improvement, outcomes[name], outcomes["none"])
        )
        collapsed = sum(rules.collapses(run.held_out) for run in runs)
        side = [[np.mean(run.side[column][-NUM_LAST:]) for run in runs if run.side[column]] for column in SIDE]
        rows.append(
            [
                *(f"`{name}`", str(len(runs)), _with_interval(interquartile_mean, outcomes[name]), better),
                *(f"{min(outcomes[name]):.3f}", f"{collapsed} of {len(runs)}"),
                *(f"{np.mean(values):.3g}" if values else "" for values in side),
            ]
        )
    return _markdown(rows)


def _contrasts(rules: Protocol, arms: Mapping[str, Sequence[LabRun]]) -> str:
    pairs = {f"`{a}` − `{b}`": (a, b) for a, b in rules.contrasts if a in arms and b in arms}
    outcomes = {name: [rules.outcome(run.held_out) for run in runs] for name, runs in arms.items()}
    p_values = {title: permutation_p(outcomes[a], outcomes[b]) for title, (a, b) in pairs.items()}
    corrected = holm(p_values)
    rows = [["contrast", "difference of means", "p", "p, corrected"]]
    for title, (a, b) in pairs.items():
        difference = _with_interval(_difference, outcomes[a], outcomes[b], sign="+")
        rows.append([title, difference, f"{p_values[title]:.3f}", f"{corrected[title]:.3f}"])
    return _markdown(rows)


def _difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first.mean(-1) - second.mean(-1)


def _with_interval(statistic: Callable[..., np.ndarray], *samples: Sequence[float], sign: str = "") -> str:
    value, low, high = interval(statistic, *samples)
    return f"{value:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})".replace("-", "−")


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
