"""The page of the comparison: figure and tables from the committed lines, as PROTOCOL.md plans them."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from experiments.lab.statistics import holm
from experiments.map.design import read
from experiments.map.page import interval, p_value, said
from experiments.rates.design import (
    ALL_TUNED,
    LONG,
    METHODS,
    RATES,
    RESULTS,
    SHORT,
    WIDE,
    is_collapsed,
    outcome,
    outcomes,
    tuned,
)

Lines = list[dict[str, Any]]
Runs = dict[tuple[int, str], dict[str, Any]]
"""The runs of a cell by seed and fingerprint of the base."""
COLUMNS = (
    "reference model, task, tokens, method, refiner, rate, weight, runs, solved, collapsed, pass@8, divergence, CPU s"
)
"""The columns of the table of cells."""
EQUIVALENT = 0.03
"""Two methods are equivalent if the 99 % interval of their difference lies within this distance of 0."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs of one method that are compared with another method's: at its best rate and weight."""

    strength: str
    method: str
    tokens: int = SHORT
    kind: str = "r80"
    task: str = "all"

    def runs(self, lines: Lines, best: dict[tuple[str, str], tuple[float, float]]) -> Runs:
        """Return the cell's runs."""
        return {
            (line["seed"], line["base"]): line
            for line in lines
            if all(line[name] == getattr(self, name) for name in self.__dataclass_fields__)
            and (line["rate"], line["weight"]) == best.get((self.strength, self.method))
        }


def _pair(one: str, two: str, strength: str, **more: Any) -> tuple[Cell, Cell]:
    return Cell(strength, one, **more), Cell(strength, two, **more)


SOLVED: dict[str, tuple[Cell, Cell]] = {
    "sft - none, strong": _pair("sft", "none", "strong"),
    "sft - static_kl, strong": _pair("sft", "static_kl", "strong"),
    "sft - second_sample, strong": _pair("sft", "second_sample", "strong"),
    "second_sample - none, strong": _pair("second_sample", "none", "strong"),
    "sft - double, strong": _pair("sft", "double", "strong"),
    "penalty_paper - none, strong": _pair("penalty_paper", "none", "strong"),
    "sft - none, weak": _pair("sft", "none", "weak"),
    "sft - second_sample, weak": _pair("sft", "second_sample", "weak"),
    "sft_unsolved_2 - second_sample_unsolved_2, weak": _pair("sft_unsolved_2", "second_sample_unsolved_2", "weak"),
    "lagrangian - sft, weak": _pair("lagrangian", "sft", "weak"),
    "sft - none, weak, long": _pair("sft", "none", "weak", tokens=LONG),
    "sft - static_kl, weak, long": _pair("sft", "static_kl", "weak", tokens=LONG),
    "sft - second_sample, weak, long": _pair("sft", "second_sample", "weak", tokens=LONG),
    "sft - second_sample, taught, weak, long": _pair("sft", "second_sample", "weak", tokens=LONG, kind="taught"),
    "sft - static_kl, hole": _pair("sft", "static_kl", "strong", tokens=2 * SHORT, task="hole"),
    "sft - none, hole": _pair("sft", "none", "strong", tokens=2 * SHORT, task="hole"),
}
"""The contrasts of the share solved that PROTOCOL.md plans."""
COLLAPSED = (("sft", "none"), ("sft", "static_kl"), ("sft", "second_sample"), ("penalty_paper", "none"))
"""The contrasts of the share of collapsed runs that PROTOCOL.md plans."""


def best_of(tuning: Lines) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the rate and the weight that tuning has chosen, by strength and method; only of tuned methods."""
    found, best = outcomes(tuning), {}
    for strength, methods in ALL_TUNED.items():
        for method in methods:
            result, _ = tuned(strength, method, found)
            if result is not None:
                best[strength, method] = result.best
    return best


def differences(first: Runs, second: Runs) -> np.ndarray:
    """Return the differences of the outcomes of two cells, at the seeds and bases that both have."""
    return np.array([outcome(first[run]) - outcome(second[run]) for run in sorted(first.keys() & second.keys())])


def wide(lines: Lines, method: str, rate: float) -> Runs:
    """Return the runs of a method at a rate of the width block: short, all rules, strong pi_0."""
    return {
        (line["seed"], line["base"]): line
        for line in lines
        if (line["strength"], line["task"], line["tokens"]) == ("strong", "all", SHORT)
        and (line["method"], line["rate"]) == (method, rate)
    }


def collapse_rate(lines: Lines) -> float | None:
    """Return the lowest rate at which at least half of the runs of `none` collapse; None if there is none."""
    for rate in RATES:
        runs = wide(lines, "none", rate)
        if runs and fmean(map(is_collapsed, runs.values())) >= 0.5:
            return rate
    return None


def mcnemar(first: Runs, second: Runs) -> tuple[float, float, float, int]:
    """Return both shares of collapsed runs at common seeds, the exact McNemar test's p, and the number of pairs."""
    pairs = [(is_collapsed(first[run]), is_collapsed(second[run])) for run in sorted(first.keys() & second.keys())]
    if not pairs:
        return math.nan, math.nan, math.nan, 0
    only_first = sum(one and not two for one, two in pairs)
    only_second = sum(two and not one for one, two in pairs)
    discordant = only_first + only_second
    p = float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0
    shares = (fmean(one for one, _ in pairs), fmean(two for _, two in pairs))
    return *shares, p, len(pairs)


def contrast_rows(lines: Lines, best: dict[tuple[str, str], tuple[float, float]]) -> list[str]:
    """Return a row for each planned contrast: effect, p after Holm's correction, pairs, verdict."""
    effects: dict[str, tuple[str, float, int, str]] = {}
    for name, (first, second) in SOLVED.items():
        values = differences(first.runs(lines, best), second.runs(lines, best))
        if len(values):
            effects[name] = said(values, signed=True), p_value(values), len(values), _equivalence(values)
    rate = collapse_rate(lines)
    if rate is not None:
        for one, two in COLLAPSED:
            share, other, p, number = mcnemar(wide(lines, one, rate), wide(lines, two, rate))
            if number:
                effects[f"collapsed: {one}, {two}"] = f"{share:.0%} against {other:.0%}", p, number, ""
    names = [*SOLVED, *(f"collapsed: {one}, {two}" for one, two in COLLAPSED)]
    p_values = {name: effects[name][1] if name in effects else 1.0 for name in names}
    corrected = holm({name: 1.0 if math.isnan(p) else p for name, p in p_values.items()})
    rows = []
    for name in names:
        if name not in effects:
            rows.append(f"| {name} | - | - | 0 | no runs |")
            continue
        effect, _, number, equivalence = effects[name]
        verdict = "decided" if corrected[name] < 0.01 else equivalence or "not decided"
        rows.append(f"| {name} | {effect} | {corrected[name]:.4f} | {number} | {verdict} |")
    return rows


def _equivalence(values: np.ndarray) -> str:
    """Return the word `equivalent` if the 99 % interval of the mean lies within the bound, else the interval."""
    if len(values) < 3:
        return ""
    around = stats.sem(values) * stats.t.ppf(0.995, len(values) - 1)
    low, high = fmean(values) - around, fmean(values) + around
    text = f"99 %: {low:+.3f} to {high:+.3f}"
    return f"equivalent ({text})" if low > -EQUIVALENT and high < EQUIVALENT else f"not decided ({text})"


def cell_rows(lines: Lines) -> list[str]:
    """Return a row for each cell: rate, weight, runs, outcome, share collapsed, pass@8, divergence, CPU seconds."""
    cells: dict[tuple, Lines] = defaultdict(list)
    names = ("strength", "task", "tokens", "method", "kind", "rate", "weight")
    for line in lines:
        cells[tuple(line[name] for name in names)].append(line)
    rows = []
    for cell in sorted(cells):
        own = cells[cell]
        strength, task, tokens, method, kind, rate, weight = cell
        collapsed = fmean(map(is_collapsed, own))
        numbers = (fmean(line["pass_at_8"] for line in own), fmean(line["kl"] for line in own))
        seconds = fmean(line["cpu_s"] for line in own)
        rows.append(
            f"| {strength} | {task} | {tokens // 1000}k | {method} | {kind} | {rate:g} | {weight:g} | {len(own)} "
            f"| {said(np.array([outcome(line) for line in own]))} | {collapsed:.0%} "
            f"| {numbers[0]:.2f} | {numbers[1]:.2f} | {seconds:.0f} |"
        )
    return rows


def tuned_rows(tuning: Lines) -> list[str]:
    """Return a row for each tuned method: the rate, the weight, and whether one of them lies at an edge of its grid."""
    rows, best = [], best_of(tuning)
    for (strength, method), (rate, weight) in best.items():
        own = [line for line in tuning if (line["strength"], line["method"]) == (strength, method)]
        rates, weights = {line["rate"] for line in own}, {line["weight"] for line in own}
        edges = [
            name
            for name, value, grid in (("rate", rate, rates), ("weight", weight, weights))
            if value in (min(grid), max(grid)) and (name == "rate" or METHODS[method].weights)
        ]
        rows.append(f"| {strength} | {method} | {rate:g} | {weight:g} | {len(own)} | {', '.join(edges) or '-'} |")
    return rows


def _draw_rates(lines: Lines, axis: Axes) -> None:
    for place, method in enumerate(WIDE):
        at, means, around = [], [], []
        for rate in RATES:
            values = [outcome(line) for line in wide(lines, method, rate).values()]
            if len(values) > 2:
                low, high = interval(np.array(values))
                at.append(rate * 1.03**place)
                means.append(fmean(values))
                around.append((means[-1] - low, high - means[-1]) if not math.isnan(low) else (0.0, 0.0))
        if at:
            axis.errorbar(at, means, np.array(around).T, label=method, marker="o", markersize=3, linewidth=1, capsize=2)
    starts = [line["start"] for line in lines if (line["strength"], line["task"]) == ("strong", "all")]
    if starts:
        axis.axhline(fmean(starts), color="grey", linewidth=0.8, linestyle="--", label="reference model")
    axis.set_xscale("log")
    axis.set_xlabel("learning rate")
    axis.set_ylabel("share of held-out questions solved")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6)


def _draw_tokens(lines: Lines, best: dict[tuple[str, str], tuple[float, float]], axis: Axes) -> None:
    for method in WIDE:
        own = list(Cell("weak", method, LONG).runs(lines, best).values())
        if own:
            grid = np.linspace(SHORT / 6, LONG, 24)
            curves = [np.interp(grid, line["at"], line["solved"]) for line in own]
            axis.plot(grid / 1000, np.mean(curves, 0), label=method, linewidth=1.2)
    axis.set_xlabel("tokens written (thousands)")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=6)


def write(folder: Path = RESULTS) -> None:
    """Write README.md and rates.png beside the lines."""
    tuning, lines = read(folder / "tune.jsonl"), read(folder / "run.jsonl")
    best = best_of(tuning)
    figure = Figure(figsize=(10, 4), layout="constrained")
    first, second = figure.subplots(1, 2)
    _draw_rates(lines, first)
    _draw_tokens(lines, best, second)
    figure.savefig(folder / "rates.png", dpi=100, metadata={"Software": None})
    (folder / "README.md").write_text("\n".join(_text(tuning, lines, best)) + "\n")


def _text(tuning: Lines, lines: Lines, best: dict[tuple[str, str], tuple[float, float]]) -> Iterable[str]:
    rate = collapse_rate(lines)
    at = f"{rate:g}" if rate is not None else "no rate of the grid so far"
    return [
        "# Every method at its own learning rate",
        "",
        "Written by `python -m experiments.rates page` from the lines beside it. What counts and how it is decided:",
        "[PROTOCOL.md](../../rates/PROTOCOL.md).",
        "",
        f"Runs so far: {len(tuning)} that tune, {len(lines)} that count.",
        "**Nothing is decided before a block is complete.**",
        "",
        "## Planned contrasts",
        "",
        "Difference of the share of held-out questions solved, same seeds and bases; 95 % bootstrap interval; p after",
        f"Holm's correction over all twenty. Collapsed runs are compared at the learning rate {at}.",
        "",
        "| contrast | effect | p | pairs | verdict |",
        "|---|---|---|---|---|",
        *contrast_rows(lines, best),
        "",
        "![outcome against learning rate; outcome against tokens](rates.png)",
        "",
        "## Tuning",
        "",
        "The best rate and weight of each tuned method, and whether they lie at an edge of the grid.",
        "",
        "| reference model | method | rate | weight | runs | at an edge |",
        "|---|---|---|---|---|---|",
        *tuned_rows(tuning),
        "",
        "## Cells",
        "",
        f"| {COLUMNS.replace(', ', ' | ')} |",
        "|---" * len(COLUMNS.split(", ")) + "|",
        *cell_rows(lines),
    ]
