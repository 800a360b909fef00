"""The figure that answers the experiment's question: the outcome of every run, arm by arm."""

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure

from recipe.report.figures import COLOURS, STYLE
from recipe.report.statistics import interquartile_mean, interval

ROW = 0.24
"""Height of an arm's row, in inches."""


@matplotlib.rc_context(STYLE)
def outcomes(by_algorithm: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Draw a panel an algorithm and a row an arm: its runs as dots, their interquartile mean with its interval."""
    heights = [len(arms) for arms in by_algorithm.values()]
    figure = Figure(figsize=(6.4, 0.9 + sum(heights) * ROW + 0.45 * len(heights)), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (algorithm, arms) in zip(panels, by_algorithm.items(), strict=True):
        for row, (name, values) in enumerate(arms.items()):
            middle, low, high = interval(interquartile_mean, values)
            if name == "none":
                axes.axvline(middle, color="#8a8f98", linewidth=0.8, linestyle="--")
            axes.plot(values, [row] * len(values), "o", color=COLOURS[0], alpha=0.35, markersize=4, markeredgewidth=0)
            axes.plot([low, high], [row, row], color=COLOURS[0], linewidth=2)
            axes.plot(middle, row, "D", color=COLOURS[0], markersize=5)
        axes.set_title(algorithm.upper())
        axes.set_yticks(range(len(arms)), list(arms))
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.grid(axis="x")
        axes.grid(False, axis="y")
    panels[-1].set_xlabel("outcome: mean on held-out problems", loc="right")
    return figure
