"""The figures of a report, drawn with matplotlib without a display."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recipe.report.runs import Run, by_arm, curve

matplotlib.use("Agg")

CURVES = {
    "reward/mean": "task reward",
    "kl_ref/k3": "KL to the reference (nats per token)",
    "constraint/cross_entropy_accepted": "cross-entropy of accepted refinements (nats per token)",
    "refiner/improvement_ratio": "improvement ratio (accepted / rollouts)",
    "reward/group_std": "reward std within a group",
    "constraint/divergence": "D of Eq. 5 (nats per rollout)",
}
STAGES = {
    "timing_s/gen": "rollout",
    "timing_s/refine": "refine",
    "timing_s/kl_ref": "KL",
    "timing_s/old_log_prob": "log-probs",
    "timing_s/refine_log_prob": "log pi(a')",
    "timing_s/update_critic": "critic update",
    "timing_s/update_actor": "actor update",
    "timing_s/update_weights": "weight sync",
}
TOKENS = {
    "tokens/rollout": "rollout",
    "tokens/refine_prompt": "refiner reads",
    "tokens/refine": "refiner writes",
    "tokens/refine_log_prob": "log pi(a')",
}


def curves(runs: list[Run]) -> Figure:
    """Draw every curve, one line an arm: mean over its runs, with their standard deviation as a band."""
    figure = Figure(figsize=(12, 10), layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(3, 2).flat, CURVES.items(), strict=True):
        for arm, members in by_arm(runs).items():
            steps, mean, spread = curve(members, metric)
            label = arm if len(members) == 1 else f"{arm} ({len(members)} runs)"
            axes.plot(steps, mean, label=label, marker="." if len(steps) < 30 else None)
            axes.fill_between(steps, mean - spread, mean + spread, alpha=0.2)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    return figure


def costs(runs: list[Run]) -> Figure:
    """Draw seconds and tokens of each stage, mean over steps, a bar an arm."""
    figure = Figure(figsize=(12, 1.5 + 0.5 * len(by_arm(runs))), layout="constrained")
    panels = zip(figure.subplots(1, 2), ((STAGES, "seconds a step"), (TOKENS, "tokens a step")), strict=True)
    for axes, (parts, title) in panels:
        _stacked_bars(axes, runs, parts)
        axes.set_title(title, fontsize=10)
    return figure


def _stacked_bars(axes: Axes, runs: list[Run], parts: dict[str, str]) -> None:
    arms = by_arm(runs)
    left = np.zeros(len(arms))
    for metric, name in parts.items():
        means = [
            np.mean([row.get(metric) or 0.0 for run in members for row in run.metrics]) for members in arms.values()
        ]
        if any(means):
            axes.barh(list(arms), means, left=left, label=name)
            left += np.array(means)
    axes.legend(fontsize=7, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.08))


def token_map(row: dict[str, Any]) -> Figure:
    """Draw the cross-entropy of every token of a response and of its refinement: dark where the policy was sure."""
    rows = (("response", row["response"]), ("refinement", row["refined"]))
    longest = max(len(tokens) for _, tokens in rows)
    figure = Figure(figsize=(min(16, 1.5 + 0.42 * longest), 1.7), layout="constrained")
    axes = figure.subplots()
    values = np.full((2, longest), np.nan)
    for line, (_, tokens) in enumerate(rows):
        for place, (text, log_prob) in enumerate(tokens):
            values[line, place] = -log_prob
            axes.text(place, line, text.replace("$", r"\$"), ha="center", va="center", fontsize=6, color="white")
    image = axes.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=8)
    axes.set_yticks([0, 1], [name for name, _ in rows])
    axes.set_xticks([])
    figure.colorbar(image, label="nats")
    return figure
