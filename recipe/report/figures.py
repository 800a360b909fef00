"""The figures of a report, drawn with matplotlib without a display."""

import io
import re
import warnings
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recipe.report.series import Quantity, Stat

COLOURS = (
    *("#1d5fb8", "#c2410c", "#15803d", "#7c3aed", "#be123c", "#0e7490", "#854d0e", "#52525b", "#a21caf", "#4d7c0f"),
)
"""Dark enough to be read as text on white. After the last they start again."""
STYLE: Any = {
    **{"font.size": 9, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.axisbelow": True},
    **{"axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False},
    **{"axes.edgecolor": "#8a8f98", "axes.labelcolor": "#4b5563", "xtick.color": "#4b5563", "ytick.color": "#4b5563"},
    **{"grid.color": "#e5e7eb", "axes.grid": True, "axes.grid.axis": "y", "lines.linewidth": 1.7, "text.color": "#111"},
}
MAX_LABEL = 40


def colour(arm: int) -> str:
    """Return the colour of an arm."""
    return COLOURS[arm % len(COLOURS)]


@matplotlib.rc_context(STYLE)
def panel(quantity: Quantity, curves: Mapping[int, dict[int, Stat]], names: list[str]) -> Figure:
    """Draw one quantity: a line for each arm, and the spread over its runs as a band.

    Args:
        quantity: What is drawn.
        curves: Values of each arm by step, by the arm's place in `names`; arms without any are left out.
        names: Every arm's.
    """
    figure = Figure(figsize=(6.4, 3.1), layout="constrained")
    axes = figure.subplots()
    for arm, points in curves.items():
        places = list(points)
        mean = np.array([point.mean for point in points.values()])
        spread = np.array([point.spread or 0.0 for point in points.values()])
        marker = "o" if len(places) < 20 else None
        axes.plot(places, mean, label=names[arm][-MAX_LABEL:], color=colour(arm), marker=marker, markersize=3.5)
        if spread.any():
            axes.fill_between(places, mean - spread, mean + spread, alpha=0.15, lw=0, color=colour(arm))
    axes.set_title(quantity.title)
    axes.set_ylabel(quantity.unit)
    axes.set_xlabel("step", loc="right")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
    if quantity.from_zero and axes.get_ylim()[0] < axes.get_ylim()[1]:
        axes.set_ylim(bottom=0)
    if len(names) > 1:
        figure.legend(loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    return figure


def svg(figure: Figure, salt: str) -> str:
    """Return a figure as an SVG element whose text is text, in the page's font and as wide as its place.

    Args:
        figure: Is drawn.
        salt: Of the ids in it, another one for each figure of a page.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a character that the font lacks: the browser has another
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = re.sub(r'<g id="[\w.]+_\d+"', "<g", text[text.index("<svg") :])  # not unique in a page
    return re.sub(r' (width|height)="[0-9.]+pt"', "", text, count=2)
