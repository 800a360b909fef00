"""The tables of the collapse experiment, from its committed lines."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from scipy.stats import fisher_exact

from experiments.collapse import design
from experiments.collapse.design import Contrast, Line
from experiments.lab.statistics import holm, permutation_p

PHASES = ("calibrate", "tune", "final")
OUTCOMES: dict[str, Callable[[Line], float]] = {
    "collapsed": design.collapsed,
    "best": design.best,
    "end": design.end,
    "kl": lambda line: line["kl"],
    "log_loss": lambda line: line["log_loss"],
}
"""The outcomes of a run, by name: shares, and nats a token for `kl` and `log_loss`."""
Lines = Mapping[str, Sequence[Line]]


def read(folder: Path) -> dict[str, list[Line]]:
    """Return the lines of each phase; none where a phase has no file."""
    return {phase: _lines(folder / f"{phase}.jsonl") for phase in PHASES}


def _lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tables(lines: Lines) -> str:
    """Return the mean outcomes of every phase, and the contrasts if the final phase is complete."""
    parts = [_means(phase, lines[phase]) for phase in PHASES if lines[phase]]
    if lines["final"] and len(lines["final"]) == len(design.jobs_of("final", lines)):
        parts.append(_contrasts(lines["final"], design.chosen_kl(lines["tune"])))
    return "\n\n".join(parts)


def _means(phase: str, lines: Sequence[Line]) -> str:
    rows = [f"| {phase} | rate | runs | {' | '.join(OUTCOMES)} |", "|---" * (3 + len(OUTCOMES)) + "|"]
    for arm, rate in dict.fromkeys((line["arm"], line["rate"]) for line in lines):
        own = [line for line in lines if (line["arm"], line["rate"]) == (arm, rate)]
        means = (f"{fmean(map(outcome, own)):.3f}" for outcome in OUTCOMES.values())
        rows.append(f"| `{arm}` | {rate:g} | {len(own)} | {' | '.join(means)} |")
    return "\n".join(rows)


def values(lines: Sequence[Line], arm: str, outcome: str) -> list[float]:
    """Return an outcome of every run of an arm."""
    return [float(OUTCOMES[outcome](line)) for line in lines if line["arm"] == arm]


def p_value(contrast: Contrast, first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p: Fisher's exact test of shares that collapsed, else by permutation of the runs."""
    if contrast.outcome != "collapsed":
        return permutation_p(first, second)
    table = [[sum(those), len(those) - sum(those)] for those in (first, second)]
    return float(fisher_exact(table).pvalue)


def _contrasts(lines: Sequence[Line], static_kl: str) -> str:
    rows, p_values = dict[str, str](), dict[str, float]()
    for contrast in design.CONTRASTS:
        names = [static_kl if arm == "static_kl" else arm for arm in (contrast.first, contrast.second)]
        first, second = (values(lines, name, contrast.outcome) for name in names)
        title = f"{contrast.outcome}: `{names[0]}` − `{names[1]}`"
        p_values[title] = p_value(contrast, first, second)
        rows[title] = f"{fmean(first) - fmean(second):+.3f} | {p_values[title]:.4f}".replace("-", "−")
    corrected = holm(p_values)
    body = [f"| {title} | {row} | {corrected[title]:.4f} |" for title, row in rows.items()]
    return "\n".join(["| contrast | difference of means | p | p, corrected |", "|---|---|---|---|", *body])
