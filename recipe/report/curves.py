"""The curves of a page: the paper's Figures 4, 5 and 7, and where a step's seconds, tokens and responses went."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

import plotly.graph_objects as go

from recipe.online_refiner.pairs import FAILURES, SKIPPED
from recipe.report.reading import Arm

COLOURS = ("#3b6fd4", "#d9772b", "#2a9d6f", "#b24bb0", "#8a6d3b", "#d4a62b", "#c2476b", "#52a7c4")
"""Of arms, and of what is stacked."""
OTHER = {"other": "#9aa3b2"}
LINES = {
    "Reward": ("of the task, mean over a step's responses", ("reward/mean",)),
    "Improvement ratio": ("share of responses that their refinement beats", ("refiner/improvement_ratio",)),
    "KL to the reference model": ("on the policy's responses, nats per token", ("kl_ref/k3",)),
    "Cross-entropy of refinements": (
        "−log π_θ(a′) of accepted ones, nats per token. Dotted: what mode sft adds to the loss, before η; it is "
        "divided by the tokens of the batch (constraint.sft_normaliser)",
        ("constraint/cross_entropy_accepted", "actor/sft_cross_entropy"),
    ),
}
"""Of the pictures that show all arms at once: what they show, and their metrics; the second one is dotted."""
STAGES = {
    "gen": "policy writes",
    "reward": "reward model",
    "refine": "refine and score",
    "wait_refiner": "wait for the refiner",
    "refine_log_prob": "log π_θ(a′)",
    "kl_ref": "KL for the metric",
    "old_log_prob": "log π_θ(a)",
    "ref": "static KL",
    "values": "critic",
    "adv": "advantages",
    "update_critic": "critic learns",
    "update_actor": "policy learns",
    "update_weights": "hand out weights",
    "save_checkpoint": "checkpoint",
    "testing": "validation",
}
"""verl's timers, and ours, of the parts of a step."""
SMALL = 0.02
"""Share of all seconds below which a stage is a part of the others."""
KINDS = {
    "accepted": ("refiner/num_accepted", "#2a9d6f"),
    "imitates itself": ("refiner/num_own", "#8fd0b5"),
    "not better": ("", "#9aa3b2"),
    **{f"failed: {one}": (f"refiner/failed/{one}", "#d0463b") for one in FAILURES},
    **{f"not refined: {one}": (f"refiner/skipped/{one}", "#c9d6f2") for one in SKIPPED},
}
"""What became of responses: metric and colour; what is not better is what is left of the attempts."""
TOKENS = {
    "responses": "tokens/rollout",
    "refiner reads": "tokens/refine_prompt",
    "refiner writes": "tokens/refine",
    "policy learns from, without refinements": "tokens/update_actor",
}


@dataclass(slots=True, kw_only=True)
class Picture:
    """One picture of a page."""

    title: str
    caption: str
    arm: int | None
    """Whose; None: all arms'."""
    figure: dict[str, Any]
    """Of plotly: data and layout."""


def pictures(arms: list[Arm]) -> Iterator[Picture]:
    """Yield all pictures that there are numbers for."""
    scored = sorted({name for arm in arms for name in arm.names if name.startswith("val-core/")})
    checked = scored or sorted({name for arm in arms for name in arm.names if name.startswith("val-")})[:1]
    titles = {f"Validation: {name.partition('/')[2]}": ("on held-out data", (name,)) for name in checked[:4]}
    for title, (caption, metrics) in {**LINES, **titles}.items():
        figure = go.Figure()
        for index, arm in enumerate(arms):
            for metric, dash in zip(metrics, ("solid", "dot"), strict=False):
                _add_line(figure, arm, metric, dash, COLOURS[index % len(COLOURS)])
        if figure.data:
            caption += ". Line: mean of the runs; band: their range" if any(len(arm.runs) > 1 for arm in arms) else ""
            yield _picture(title, caption, None, figure)
    for index, arm in enumerate(arms):
        found = (_by_source(index, arm), *_of_arm(index, arm))
        yield from (picture for picture in found if picture.figure["data"])


def _add_line(figure: go.Figure, arm: Arm, metric: str, dash: str, colour: str) -> None:
    values = arm.values(metric)
    if not values:
        return
    steps = list(values)
    means = [sum(of_step) / len(of_step) for of_step in values.values()]
    name, group = escape(arm.name), {"legendgroup": escape(arm.name), "mode": "lines"}
    if len(arm.runs) > 1:
        low, high = [min(one) for one in values.values()], [max(one) for one in values.values()]
        edges = {"x": steps + steps[::-1], "y": high + low[::-1], "fill": "toself", "hoverinfo": "skip"}
        figure.add_scatter(**edges, **group, fillcolor=colour, opacity=0.18, line_width=0, showlegend=False)
    group["mode"] = "lines+markers" if len(steps) < 30 else "lines"
    figure.add_scatter(
        x=steps, y=means, name=name, **group, line={"color": colour, "dash": dash}, showlegend=dash == "solid"
    )


def _by_source(index: int, arm: Arm) -> Picture:
    """Return the improvement ratio of each data source, where refiners differ by it."""
    figure, prefix = go.Figure(), "refiner/improvement_ratio/"
    metrics = sorted(name for name in arm.names if name.startswith(prefix))
    for metric, colour in zip(metrics, itertools.cycle(COLOURS), strict=False):
        values = arm.values(metric)
        figure.add_scatter(
            x=list(values),
            y=[sum(of_step) / len(of_step) for of_step in values.values()],
            name=escape(metric.removeprefix(prefix)),
            mode="lines+markers" if len(values) < 30 else "lines",
            line_color=colour,
            showlegend=True,
        )
    caption = "share of a source's responses that their refinement beats (refiner.by_source)"
    return _picture("Improvement ratio by data source", caption, index, figure)


def _of_arm(index: int, arm: Arm) -> Iterator[Picture]:
    """Yield what is stacked over the steps of one arm."""
    steps = list(arm.values("timing_s/step"))
    if not steps:
        return
    mean = {name: {step: sum(one) / len(one) for step, one in arm.values(name).items()} for name in arm.names}

    def column(name: str) -> list[float]:
        return [mean.get(name, {}).get(step, 0.0) for step in steps]

    whole = column("timing_s/step")
    seconds = {label: column(f"timing_s/{stage}") for stage, label in STAGES.items()}
    seconds = {label: parts for label, parts in seconds.items() if sum(parts) > SMALL * sum(whole)}
    sums = map(sum, zip(*seconds.values(), strict=True)) if seconds else [0.0] * len(whole)
    seconds["other"] = [max(0.0, all_of_it - parts) for all_of_it, parts in zip(whole, sums, strict=True)]
    yield _stacked("Seconds of a step, by stage", "", index, steps, seconds, OTHER)
    columns = {name: column(metric) for name, (metric, _) in KINDS.items() if metric}
    failed = zip(*(columns[f"failed: {one}"] for one in FAILURES), strict=True)
    attempts = zip(column("refiner/num_attempted"), columns["accepted"], failed, strict=True)
    columns["not better"] = [tried - won - sum(lost) for tried, won, lost in attempts]
    kinds = {name: columns[name] for name in KINDS}
    colours = {name: colour for name, (_, colour) in KINDS.items()}
    yield _stacked(
        "What became of the responses",
        "responses of a step, by the verdict on their refinement",
        index,
        steps,
        kinds,
        colours,
    )
    figure = go.Figure()
    for (label, metric), colour in zip(TOKENS.items(), COLOURS, strict=False):
        if any(column(metric)):
            figure.add_scatter(x=steps, y=column(metric), name=label, mode="lines", line_color=colour)
    yield _picture("Tokens of a step", "", index, figure)


def _stacked(
    title: str, caption: str, arm: int, steps: list[int], columns: dict[str, list[float]], colours: dict[str, str]
) -> Picture:
    figure = go.Figure(layout={"barmode": "stack", "bargap": 0.1 if len(steps) < 100 else 0})
    used = {name: values for name, values in columns.items() if any(values)}
    for index, (name, values) in enumerate(used.items()):
        colour = colours.get(name, COLOURS[index % len(COLOURS)])
        figure.add_bar(x=steps, y=values, name=name, marker={"color": colour, "line_width": 0})
    return _picture(title, caption, arm, figure)


def _picture(title: str, caption: str, arm: int | None, figure: go.Figure) -> Picture:
    figure.update_layout(template="none", hovermode="x unified", xaxis_title="step")
    return Picture(title=title, caption=caption, arm=arm, figure=figure.to_plotly_json())
