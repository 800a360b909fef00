"""The map's page: figure and tables from the committed lines."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from experiments.lab.statistics import holm
from experiments.map.arms import ARMS
from experiments.map.design import EVERY, LONG, POINTS, RESULTS, SHORT, Point, outcome, read
from experiments.map.tasks import REFINERS

Run = tuple[int, str]
"""A seed and the fingerprint of its base."""
Cell = tuple[str, str, str]
"""A point, an arm, and the kind of refiner (empty: none)."""
Contrast = tuple[Cell, Cell, int]
"""Two cells and a horizon in steps: the first less the second."""
CONTRASTS: dict[str, Contrast] = {
    "sft, strong refiner - static KL": (("weak", "sft", "r80"), ("weak", "kl_in_loss", ""), SHORT),
    "sft, strong refiner - own solved": (("weak", "sft", "r80"), ("weak", "own_solved", ""), SHORT),
    "sft, strong refiner - second sample": (("weak", "sft", "r80"), ("weak", "resample", ""), SHORT),
    "sft, weak refiner - second sample": (("weak", "sft", "r20"), ("weak", "resample", ""), SHORT),
    "second sample - static KL": (("weak", "resample", ""), ("weak", "kl_in_loss", ""), SHORT),
    "sft - sft without the gate": (("weak", "sft", "r80"), ("weak", "sft_no_gate", "r80"), SHORT),
    "the paper's penalty - none": (("weak", "penalty_paper", "r80"), ("weak", "none", ""), SHORT),
    "sft, strong refiner - static KL, long": (("weak", "sft", "r80"), ("weak", "kl_in_loss", ""), LONG),
    "static KL - none, steep, long": (("steep", "kl_in_loss", ""), ("steep", "none", ""), LONG),
}
CURVES: dict[str, Cell] = {
    "no constraint": ("weak", "none", ""),
    "static KL": ("weak", "kl_in_loss", ""),
    "sft, strong refiner": ("weak", "sft", "r80"),
    "second sample": ("weak", "resample", ""),
    "twice the questions": ("weak", "double", ""),
}
AFTERWARDS: tuple[tuple[Cell, Cell], ...] = (
    (("weak", "sft at 1", "r80"), ("weak", "sft", "r80")),
    (("weak", "sft at 1", "r80"), ("weak", "resample", "")),
    (("weak", "sft at 1", "r80"), ("weak", "sft_no_gate", "r80")),
    (("weak", "lagrangian", "r80"), ("weak", "sft at 1", "r80")),
    (("weak", "sft at 1", "r80"), ("weak", "double", "")),
    (("weak", "double", ""), ("weak", "kl_in_loss", "")),
    (("weak", "in_place", "r80"), ("weak", "sft", "r80")),
    (("weak", "in_place", "r80"), ("weak", "kl_in_loss", "")),
    (("weak", "penalty", "r80"), ("weak", "kl_in_loss", "")),
    (("weak", "penalty", "r80"), ("weak", "none", "")),
    (("weak", "penalty_paper", "r80"), ("weak", "kl_in_loss", "")),
    (("weak", "sft_no_gate", "careless"), ("weak", "none", "")),
    (("weak", "sft_no_gate", "careless"), ("weak", "sft", "careless")),
    (("weak", "sft", "careless"), ("weak", "none", "")),
    (("weak", "sft_no_gate", "r20"), ("weak", "sft", "r20")),
    (("weak", "sft", "early"), ("weak", "kl_in_loss", "")),
    (("weak", "sft", "late"), ("weak", "kl_in_loss", "")),
    (("weak", "oracle", ""), ("weak", "resample", "")),
)
"""The comparisons added after results were seen; ``sft at 1`` has the weight that was chosen without the gate."""
LIMITS = (
    "**Read this first.** The learning rate, 1e-3, was not tuned for any arm. At 5e-4 the arm `none` solves 0.67 and",
    "0.70 (two seeds, same runner), more than any arm below. Blocks 7 to 10 of the design (the point `steep`) were",
    "passed over, while later blocks have all their runs. Tuning chose the largest weight that was tried, 1, for",
    "`own_solved`, `resample`, `sft_no_gate`, `lagrangian` and `in_place`, and the smallest, 0.003, for",
    "`kl_in_reward`. The share of wrong answers that a second sample improves is measured at the start; it falls from",
    "0.30 to 0.18 while the policy learns.",
)
"""The limits of the experiment that a reader must know before the numbers."""
SLOPE = "slope of sft over the refiner's margin"
"""The contrasts that PROTOCOL.md plans, the slope included: ten p-values, corrected together (Holm)."""
SEED = 0
"""The seed of bootstrap and permutations."""


def cells(lines: Iterable[dict[str, Any]], steps: int) -> dict[Cell, dict[Run, float]]:
    """Return the outcome of each run at a horizon, by cell; runs that end earlier are left out."""
    found: dict[Cell, dict[Run, float]] = defaultdict(dict)
    for line in lines:
        if line["steps"] >= steps:
            found[line["point"], line["arm"], line["kind"]][line["seed"], line["base"]] = outcome(line, steps)
    return dict(found)


def paired(first: dict[Run, float], second: dict[Run, float]) -> np.ndarray:
    """Return the differences of two cells at the seeds that both have: same base, same questions."""
    return np.array([first[run] - second[run] for run in sorted(first.keys() & second.keys())])


def interval(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % bootstrap interval (BCa) of a mean; NaN if it cannot be computed."""
    if len(values) < 3 or np.ptp(values) == 0:
        return math.nan, math.nan
    found = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(SEED)).confidence_interval
    return float(found.low), float(found.high)


def p_value(differences: np.ndarray) -> float:
    """Return the two-sided p of the mean of paired differences, by permuting their signs."""
    if len(differences) < 3:
        return math.nan
    options = {"permutation_type": "samples", "n_resamples": 99_999, "rng": np.random.default_rng(SEED)}
    return float(stats.permutation_test((differences,), np.mean, **options).pvalue)


def said(values: np.ndarray, *, signed: bool = False) -> str:
    """Return a mean with its interval."""
    form: Callable[[float], str] = (lambda one: f"{one:+.3f}") if signed else (lambda one: f"{one:.3f}")
    low, high = interval(values)
    around = "" if math.isnan(low) else f" ({form(low)} to {form(high)})"
    return f"{form(fmean(values))}{around}"


def slopes(lines: list[dict[str, Any]], bases: list[dict[str, Any]]) -> np.ndarray:
    """Return for each seed how much the outcome of ``sft`` rises with the refiner's margin over a second sample.

    The slope is fitted by least squares at the point ``weak``, over the refiners r05 to r95, for seeds with all these.
    """
    known, by_cell = margins(bases), cells(lines, SHORT)
    kinds = [kind for kind in REFINERS if kind[1:].isdigit()]
    runs = [by_cell.get(("weak", "sft", kind), {}) for kind in kinds]
    seeds = sorted(set.intersection(*(set(one) for one in runs)))
    return np.array(
        [stats.linregress([known["weak", kind] for kind in kinds], [one[seed] for one in runs]).slope for seed in seeds]
    )


def contrast_rows(lines: list[dict[str, Any]], bases: list[dict[str, Any]]) -> list[str]:
    """Return a row for each planned contrast: difference with interval, p after correction, number of pairs.

    A contrast without runs counts in the correction, with p = 1.
    """
    found = {SLOPE: slopes(lines, bases)}
    for name, (first, second, steps) in CONTRASTS.items():
        by_cell = cells(lines, steps)
        found[name] = paired(by_cell.get(first, {}), by_cell.get(second, {}))
    p_values = {name: p_value(values) for name, values in found.items()}
    corrected = holm({name: 1.0 if math.isnan(p) else p for name, p in p_values.items()})
    rows = []
    for name, values in found.items():
        effect = said(values, signed=True) if len(values) else "-"
        p = "-" if math.isnan(p_values[name]) else f"{corrected[name]:.4f}"
        rows.append(f"| {name} | {effect} | {p} | {len(values)} |")
    return rows


def distinct(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs that count: if a seed has a short and a long run, which begin alike, only the long one."""
    ordered = sorted(lines, key=lambda line: line["steps"])
    return list(
        {(*(line[name] for name in ("point", "arm", "kind", "seed", "base")),): line for line in ordered}.values()
    )


def cell_rows(lines: list[dict[str, Any]]) -> list[str]:
    """Return a row for each cell: outcomes by horizon, entropy, tokens and CPU seconds a step."""
    rows, order = [], list(ARMS)
    by_steps = {steps: cells(lines, steps) for steps in (SHORT, LONG)}
    own: dict[Cell, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        own[line["point"], line["arm"], line["kind"]].append(line)
    for cell in sorted(own, key=lambda cell: (list(POINTS).index(cell[0]), order.index(cell[1]), cell[2])):
        point, arm, kind = cell
        outcomes = [
            said(np.array(list(by_steps[steps][cell].values()))) if cell in by_steps[steps] else "-"
            for steps in (SHORT, LONG)
        ]
        weights = "/".join(f"{one:g}" for one in sorted({line["weight"] for line in own[cell]} - {0.0})) or "-"
        each = {
            "entropy": fmean(line["entropy"][-1] for line in own[cell]),
            "tokens": fmean(line["tokens"] / line["steps"] for line in own[cell]),
            "cpu_s": fmean(line["cpu_s"] / line["steps"] for line in own[cell]),
        }
        name = f"{arm}, {kind}" if kind else arm
        numbers = f"{each['entropy']:.2f} | {each['tokens']:.0f} | {each['cpu_s']:.2f}"
        num_long = len(by_steps[LONG].get(cell, ()))
        runs = f"{len(own[cell])}{f', {num_long} long' if num_long else ''}"
        rows.append(f"| {point} | {name} | {weights} | {runs} | {' | '.join(outcomes)} | {numbers} |")
    return rows


def explored_rows(lines: list[dict[str, Any]], explored: list[dict[str, Any]]) -> list[str]:
    """Return a row for each comparison added afterwards: the paired difference at the short horizon."""
    by_cell = cells(lines, SHORT)
    by_cell |= {(point, f"{arm} at 1", kind): own for (point, arm, kind), own in cells(explored, SHORT).items()}
    rows = []
    for first, second in AFTERWARDS:
        differences = paired(by_cell.get(first, {}), by_cell.get(second, {}))
        if len(differences):
            names = " - ".join(", ".join(filter(None, cell[1:])) for cell in (first, second))
            rows.append(f"| {names} | {said(differences, signed=True)} | {len(differences)} |")
    return rows


def margins(bases: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the share of wrong answers that a refiner improves minus a second sample's, by strength and kind."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for base in bases:
        for name, share in base.items():
            what, _, kind = name.partition("/")
            if what == "better" and kind != "second":
                found[base["strength"], kind].append(share - base["better/second"])
    return {key: fmean(values) for key, values in found.items()}


def gains(lines: list[dict[str, Any]], bases: list[dict[str, Any]], point: Point, other: str, steps: int) -> np.ndarray:
    """Return the gain of ``sft`` over another arm at a point and horizon, by the refiner's margin.

    Returns:
        (refiners, 4): margin, gain, and the ends of its interval, of the refiners with three pairs of runs or more.
    """
    known, by_cell, rows = margins(bases), cells(lines, steps), []
    for (name, arm, kind), outcomes in by_cell.items():
        if (name, arm) == (point.name, "sft") and (point.strength, kind) in known:
            differences = paired(outcomes, by_cell.get((point.name, other, ""), {}))
            if len(differences) >= 3:
                rows.append((known[point.strength, kind], differences.mean(), *interval(differences)))
    return np.array(sorted(rows)).reshape(-1, 4)


def draw_curves(lines: list[dict[str, Any]], axis: Axes) -> None:
    """Draw the share that some arms solve, step by step: means over seeds with 95 % intervals by Student's t."""
    for name, cell in CURVES.items():
        runs = [line["solved"] for line in lines if (line["point"], line["arm"], line["kind"]) == cell]
        columns = [
            np.array([run[place] for run in runs if len(run) > place])
            for place in range(max(map(len, runs), default=0))
        ]
        columns = [column for column in columns if len(column) > 1]
        steps = EVERY * np.arange(1, 1 + len(columns))
        means = np.array([column.mean() for column in columns])
        around = np.array([stats.sem(column) * stats.t.ppf(0.975, len(column) - 1) for column in columns])
        axis.plot(steps, means, label=name, linewidth=1.2)
        axis.fill_between(steps, means - around, means + around, alpha=0.15)
    axis.set_title("share of held-out questions solved", fontsize=9)
    axis.set_xlabel("step", fontsize=8)
    axis.legend(fontsize=6)


def draw(lines: list[dict[str, Any]], bases: list[dict[str, Any]], file: Path) -> None:
    """Draw the share that some arms solve, step by step, and the gain of ``sft`` against the refiner's margin.

    The gain is over static KL, own solved answers and a second sample. Each point with runs of a refiner has a panel.
    """
    points = [point for point in POINTS.values() if any(line["point"] == point.name and line["kind"] for line in lines)]
    figure = Figure(figsize=(5 + 4 * len(points), 3.5), layout="constrained")
    first, *axes = figure.subplots(1, 1 + len(points), squeeze=False)[0]
    draw_curves(lines, first)
    for axis, point in zip(axes, points, strict=True):
        for place, other in enumerate(("kl_in_loss", "own_solved", "resample")):
            for steps, marker in ((SHORT, "o"), (LONG, "D")):
                x, y, low, high = gains(lines, bases, point, other, steps).T
                if len(x):
                    form = {"marker": marker, "color": f"C{place}", "capsize": 2, "linewidth": 1}
                    axis.errorbar(x + 0.006 * place, y, [y - low, high - y], label=f"over {other}, {steps}", **form)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_title(f"{point.name}: {point.strength} pi_0, rate {point.rate:g}", fontsize=9)
        axis.set_xlabel("refiner better less second sample better", fontsize=8)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=6)
    axes[0].set_ylabel("gain of sft after so many steps", fontsize=8)
    figure.savefig(file, dpi=100, metadata={"Software": None})


def base_rows(bases: list[dict[str, Any]]) -> list[str]:
    """Return a row for each base: the share that it solves, and the shares of wrong answers that sources improve."""
    kinds = [name.partition("/")[2] for name in bases[0] if name.startswith("better/")] if bases else []
    rows = [f"| base | solved | {' | '.join(kinds)} |", "|---" * (len(kinds) + 2) + "|"]
    for base in bases:
        shares = " | ".join(f"{base[f'better/{kind}']:.2f}" for kind in kinds)
        rows.append(f"| {base['strength']} {base['seed']} (`{base['base']}`) | {base['solved']:.2f} | {shares} |")
    return rows


def write(folder: Path = RESULTS) -> None:
    """Write README.md and map.png beside the lines."""
    lines, bases = distinct(read(folder / "run.jsonl")), read(folder / "bases.jsonl")
    draw(lines, bases, folder / "map.png")
    text = [
        "# The map, so far",
        "",
        "Written by `python -m experiments.map page` from the lines beside it. What counts and how it is decided:",
        "[PROTOCOL.md](../../map/PROTOCOL.md).",
        "",
        f"Runs that count: {len(lines)}.",
        "",
        *LIMITS,
        "",
        "## Planned contrasts",
        "",
        "Difference of the share of held-out questions solved, same seeds; 95 % bootstrap interval; p by permutation",
        "of signs, corrected over all ten (Holm). **Nothing is decided before all pairs are there.**",
        "",
        "| contrast | difference | p | pairs |",
        "|---|---|---|---|",
        *contrast_rows(lines, bases),
        "",
        "![gain of sft against the refiner's margin over a second sample](map.png)",
        "",
        "## Cells",
        "",
        "Share of held-out questions solved at each horizon; entropy at the end; tokens and CPU seconds of a step.",
        "",
        f"| point | arm, refiner | weight | runs | {SHORT} steps | {LONG} steps | entropy | tokens | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
        *cell_rows(lines),
        "",
        "## Seen afterwards",
        "",
        f"After {SHORT} steps at the point `weak`. It decides nothing.",
        "",
        "| compared | difference | pairs |",
        "|---|---|---|",
        *explored_rows(lines, read(folder / "explore.jsonl")),
        "",
        "## Bases",
        "",
        "Share of wrong answers that a second sample of pi_0 betters, and each kind of refiner.",
        "",
        *base_rows(bases),
    ]
    (folder / "README.md").write_text("\n".join(text) + "\n")
