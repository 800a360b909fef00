"""The figures of a report, drawn with matplotlib without a display: for the page as SVG, beside it as PNG."""

import io
import re
import warnings
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from recipe.report.series import Quantity, Stat
from recipe.report.statistics import profile

COLOURS = (
    *("#1d5fb8", "#c2410c", "#15803d", "#7c3aed", "#be123c", "#0e7490", "#854d0e", "#52525b", "#a21caf", "#4d7c0f"),
)
"""Dark enough to be read as text on white. After the last they start again, dashed, then dotted."""
DASHES = ((), (4, 1.5), (1, 1.2))
STAGE_COLOURS = (
    *("#8fb8de", "#f6b26b", "#f4cf7c", "#a3d39c", "#c9b8e8", "#e6a8c0", "#9fd8d3", "#d9c2a3", "#f29e8e", "#b6c4d6"),
    *("#d5dd8f", "#cfa6d6", "#a8c6a0", "#d6d9de"),
)
"""Light enough for black numbers on them."""
STYLE: Any = {
    **{"font.size": 9, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.axisbelow": True},
    **{"axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False},
    **{"axes.edgecolor": "#8a8f98", "axes.labelcolor": "#4b5563", "xtick.color": "#4b5563", "ytick.color": "#4b5563"},
    **{"grid.color": "#e5e7eb", "axes.grid": True, "axes.grid.axis": "y", "lines.linewidth": 1.7, "text.color": "#111"},
}
MAX_BANDS = 6
"""With more arms, the page shows the band of the one that is pointed at."""
MAX_LABEL = 24
TOKENS_A_LINE = 12
MAX_TOKEN_LINES = 24
CE_LIMIT = 6.0
"""Nats at which the colour of a token ends."""
CE_COLOURS = ("#ffffff", "#ffe3c2", "#fdb27a", "#f2704c")
"""From a sure token to one that the policy did not expect; black text can be read on all."""


def colour(arm: int) -> str:
    """Return the colour of an arm."""
    return COLOURS[arm % len(COLOURS)]


def dash_array(arm: int) -> str:
    """Return the dashes of an arm's line as SVG has them; empty for a line without."""
    return " ".join(str(3 * length) for length in _dashes(arm))


def _dashes(arm: int) -> tuple[float, ...]:
    return DASHES[arm // len(COLOURS) % len(DASHES)]


@matplotlib.rc_context(STYLE)
def panel(
    quantity: Quantity, curves: Mapping[int, dict[int, Stat]], *, names: list[str], steps: tuple[int, int], window: int
) -> Figure:
    """Draw one quantity, a line an arm with the spread over its runs as a band and its name at the end.

    Args:
        quantity: What is drawn.
        curves: Values of each arm, by its place in `names`; arms without any are left out.
        names: Every arm's.
        steps: The first and the last step of the axis.
        window: Steps that each value is a mean over.
    """
    figure = Figure(figsize=(6.4, 3.1))
    labels = {arm: _clipped(names[arm], MAX_LABEL) for arm in curves} if len(names) > 1 else {}
    right = 0.98 - 0.0107 * max((len(label) + 3 for label in labels.values()), default=0)
    axes = figure.add_axes((0.085, 0.155, right - 0.085, 0.66))
    for arm, points in curves.items():
        places = list(points)
        mean = np.array([point.mean for point in points.values()])
        spread = np.array([point.spread or 0.0 for point in points.values()])
        line: dict[str, Any] = {"color": colour(arm), "marker": "o" if len(places) < 20 else None, "markersize": 3.5}
        axes.plot(places, mean, dashes=_dashes(arm) or (None, None), gid=f"{quantity.slug}-arm-{arm}-line", **line)
        if spread.any():
            alpha = 0.15 if len(curves) <= MAX_BANDS else 0.0
            band = axes.fill_between(places, mean - spread, mean + spread, alpha=alpha, lw=0, color=colour(arm))
            band.set_gid(f"{quantity.slug}-arm-{arm}-band")
    unit = f"{quantity.unit}; running mean over {window} steps" if window > 1 else quantity.unit
    figure.text(0, 0.975, quantity.title, fontsize=11, weight="bold", va="top")
    figure.text(0, 0.9, unit, color="#4b5563", va="top")
    axes.set_xlabel("step", loc="right")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    margin = 0.02 * max(1, steps[1] - steps[0])
    axes.set_xlim(steps[0] - margin, steps[1] + margin)
    if quantity.from_zero and axes.get_ylim()[0] < axes.get_ylim()[1]:
        axes.set_ylim(bottom=0)
    axes.set_ylim(axes.get_ylim())  # final from here on: names are placed by them
    if max(map(abs, axes.get_ylim())) < 2e-3:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))  # there is no room for so many zeros
    _label_ends(axes, curves, labels, quantity.slug)
    return figure


def _label_ends(axes: Axes, curves: Mapping[int, dict[int, Stat]], labels: dict[int, str], slug: str) -> None:
    """Write each arm's name right of the axes, beside its last point or as near as the other names let it."""
    if not labels:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = {}
    for arm in labels:
        step, point = list(curves[arm].items())[-1]
        ends[arm] = to_axes.transform((step, point.mean))
    gap = min(0.075, 1.0 / len(ends))
    order = sorted(ends, key=lambda arm: ends[arm][1])
    places = spread_out([ends[arm][1] for arm in order], gap)
    for arm, place in zip(order, places, strict=True):
        x, y = ends[arm]
        about: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "color": colour(arm)}
        leader = axes.plot([x, 1.0, 1.02], [y, place, place], gid=f"{slug}-arm-{arm}-leader", **about)[0]
        leader.set(linewidth=0.7, linestyle=(0, (1, 2)))  # not to be taken for a curve that goes on
        axes.text(1.03, place, labels[arm], gid=f"{slug}-arm-{arm}-label", va="center", fontsize=8.5, **about)


def spread_out(heights: list[float], gap: float) -> list[float]:
    """Move ascending heights apart to at least a gap, as little as possible; between 0 and 1 where all fit.

    ``[0.5, 0.5]`` by 0.1 becomes ``[0.45, 0.55]``.
    """
    blocks: list[list[float]] = []  # neighbours that touch move together, by the mean of what each would like
    for place, height in enumerate(heights):
        blocks.append([height - place * gap])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    wished = [float(np.mean(block)) for block in blocks for _ in block]
    highest = 1.0 - (len(heights) - 1) * gap
    return [max(0.0, min(highest, height)) + place * gap for place, height in enumerate(wished)]


@matplotlib.rc_context(STYLE)
def profiles(values: Mapping[int, list[float]], names: list[str], title: str, unit: str) -> Figure:
    """Draw which share of an arm's runs is above each value, a line an arm (a performance profile).

    Args:
        values: Of the runs of each arm, by its place in `names`.
        names: Every arm's.
        title: Of the figure.
        unit: What the values are.
    """
    figure = Figure(figsize=(6.4, 3.1), layout="constrained")
    figure.suptitle(title, x=0, ha="left", fontsize=11, weight="bold")
    axes = figure.subplots()
    lowest, highest = min(map(min, values.values())), max(map(max, values.values()))
    margin = 0.05 * (highest - lowest) or 0.05
    for arm, of_runs in values.items():
        steps = [lowest - margin, *sorted(of_runs), highest + margin]
        label = _clipped(names[arm], MAX_LABEL)
        axes.step(
            steps,
            profile(of_runs, steps),
            where="post",
            color=colour(arm),
            dashes=_dashes(arm) or (None, None),
            label=label,
        )
    axes.set_xlim(lowest - margin, highest + margin)
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel(unit, loc="right")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


@matplotlib.rc_context(STYLE)
def stacked_bars(parts: list[dict[str, float]], names: list[str], title: str, unit: str) -> Figure:
    """Draw one stacked bar an arm; all arms have the same parts."""
    figure = Figure(figsize=(6.4, 1.45 + 0.28 * len(names)), layout="constrained")
    figure.suptitle(title, x=0, ha="left", fontsize=11, weight="bold")
    axes = figure.subplots()
    left = np.zeros(len(names))
    widest = max(sum(values.values()) for values in parts) or 1.0
    for index, part in enumerate(parts[0]):
        values = np.array([values[part] for values in parts])
        bars = axes.barh(range(len(names)), values, left=left, color=STAGE_COLOURS[index], label=part, height=0.7)
        labels = [f"{value:,.0f}" if value > 0.07 * widest else "" for value in values]
        axes.bar_label(bars, labels, label_type="center", fontsize=8, color="#111")
        left += values
    axes.set_yticks(range(len(names)), [_clipped(name, MAX_LABEL) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.grid(False, axis="y")
    axes.set_xlabel(unit)
    figure.legend(loc="outside lower left", ncols=4, fontsize=8, frameon=False, handlelength=1, columnspacing=1.2)
    return figure


@matplotlib.rc_context(STYLE)
def token_map(pair: dict[str, Any]) -> Figure:
    """Draw the cross-entropy of every token of a response (left) and of its refinement (right), in reading order."""
    sides = (("response", pair["response"]), ("refinement", pair["refined"]))
    num_lines = min(MAX_TOKEN_LINES, max(-(-len(tokens) // TOKENS_A_LINE) for _, tokens in sides) or 1)
    figure = Figure(figsize=(12.8, 1.1 + 0.24 * num_lines), layout="constrained")
    colours = matplotlib.colors.LinearSegmentedColormap.from_list("cross_entropy", CE_COLOURS)
    image: Any = None
    for axes, (name, tokens) in zip(figure.subplots(1, 2), sides, strict=True):
        shown = tokens[: num_lines * TOKENS_A_LINE]
        values = np.full(num_lines * TOKENS_A_LINE, np.nan)
        values[: len(shown)] = [np.nan if log_prob is None else -log_prob for _, log_prob in shown]
        image = axes.imshow(values.reshape(num_lines, -1), aspect="auto", cmap=colours, vmin=0, vmax=CE_LIMIT)
        for place, (text, _) in enumerate(shown):
            line, column = divmod(place, TOKENS_A_LINE)
            axes.text(column, line, _clipped(text.replace("\n", "⏎"), 9), ha="center", va="center", fontsize=6)
        rest = f" (the first {len(shown)} of {len(tokens)} tokens)" if len(shown) < len(tokens) else ""
        axes.set_title(name + rest)
        axes.set_axis_off()
    figure.colorbar(image, label="-log π(token), nats", extend="max")
    return figure


def svg(figure: Figure, slug: str) -> str:
    """Return a figure as an SVG element whose text is text, in the page's font and as wide as its place."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": slug}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a character that the font lacks: the browser has another
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = re.sub(r'<g id="[\w.]+_\d+"', "<g", text[text.index("<svg") :])  # not unique in a page
    size = re.compile(r' (width|height)="[0-9.]+pt"')
    return size.sub("", text, count=2)


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _clipped(text: str, length: int) -> str:
    tail = length // 2
    return text if len(text) <= length else text[: length - tail - 1] + "…" + text[-tail:]
