"""The page of the collapse experiment, from its committed lines."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from scipy.stats import fisher_exact

from experiments.collapse import design
from experiments.collapse.design import Contrast, Line, Lines
from experiments.lab.statistics import holm, permutation_p

RESULTS = Path(__file__).resolve().parents[1] / "results" / "collapse"
START = "start.json"
"""The reference model's share of held-out questions: `solved`, and the number of `answers` that measured it."""
PHASES = ("calibrate", "final")
OUTCOMES: dict[str, Callable[[Line], float]] = {
    "collapsed": design.collapsed,
    "best": design.best,
    "end": design.end,
    "kl": lambda line: line["kl"],
    "log_loss": lambda line: line["log_loss"],
}
"""The outcomes of a run, by name: shares, and nats a token for `kl` and `log_loss`."""
COSTS = ("tokens", "cpu_s")
"""What a run costs: the tokens that policy and refiner write, and the CPU seconds of all its processes."""


def read(folder: Path) -> dict[str, list[Line]]:
    """Return the lines of each phase; none where a phase has no file."""
    return {phase: _lines(folder / f"{phase}.jsonl") for phase in PHASES}


def read_start(folder: Path) -> dict[str, float] | None:
    """Return the reference model's share of held-out questions; None if it has not been measured."""
    path = folder / START
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _lines(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tables(lines: Lines) -> str:
    """Return the mean outcomes of every phase, and the contrasts if the final phase is complete."""
    parts = [_means(phase, lines[phase]) for phase in PHASES if lines[phase]]
    if is_complete(lines):
        parts.append(_contrasts(lines["final"], design.best_kl(lines["final"])))
    return "\n\n".join(parts)


def is_complete(lines: Lines) -> bool:
    """Return whether every run of the final phase has its line."""
    return bool(lines["final"]) and design.next_run(lines) is None


def _means(phase: str, lines: Sequence[Line]) -> str:
    names = (*OUTCOMES, *COSTS)
    rows = [f"| {phase} | rate | runs | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for arm, rate in dict.fromkeys((line["arm"], line["rate"]) for line in lines):
        own = [line for line in lines if (line["arm"], line["rate"]) == (arm, rate)]
        means = [f"{fmean(map(outcome, own)):.3f}" for outcome in OUTCOMES.values()]
        means += [f"{fmean(line[cost] for line in own):.0f}" for cost in COSTS]
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


def write(folder: Path = RESULTS) -> None:
    """Write README.md beside the lines."""
    (folder / "README.md").write_text(text_of(read(folder), read_start(folder)), encoding="utf-8")


def text_of(lines: Lines, start: Mapping[str, float] | None) -> str:
    """Return the text of the page."""
    total = len(design.final(0.0))
    if is_complete(lines):
        state = f"All {total} runs of the final phase are there."
    else:
        there = f"{len(lines['final'])} of {total} runs of the final phase are there."
        state = f"{there} **Nothing is decided before all are.**"
    measured = (
        "The reference model has not been measured yet."
        if start is None
        else f"The reference model solves {start['solved']:.3f} of the held-out questions ({start['answers']} answers)."
    )
    parts = [
        "# Collapse with a real model",
        "Written by `python -m experiments.collapse page` from the lines beside it. What counts and how it is\n"
        "decided: [PROTOCOL.md](../../collapse/PROTOCOL.md).",
        f"{state} {measured}",
        "`collapsed`, `best` and `end` are shares, `kl` and `log_loss` nats a token; the reference model itself has a\n"
        "log-loss of 0.7146. `tokens` counts what policy and refiner write in training, `cpu_s` a run's CPU seconds.",
        tables(lines),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
