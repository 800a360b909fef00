"""The curves of a page: the paper's Figures 4, 5 and 7, and where a step's seconds, tokens and responses went."""

import itertools
from collections.abc import Iterator
from html import escape
from typing import Any

import pandas
import plotly.graph_objects as go

from recipe.online_refiner import metric_names
from recipe.online_refiner.method.pairs import FAILURES, SKIPPED, Verdict
from recipe.report.reading import Arm
from recipe.report.words import VERDICTS

COLOURS = ("#3b6fd4", "#d9772b", "#2a9d6f", "#b24bb0", "#8a6d3b", "#d4a62b", "#c2476b", "#52a7c4")
"""The colours of arms, and of a stacked picture's parts."""
OTHER = {"other": "#9aa3b2"}
LINES = {
    "Reward": ("of the task, mean over a step's responses", (metric_names.REWARD,)),
    "Improvement ratio": ("share of responses that their refinement beats", (metric_names.IMPROVEMENT_RATIO,)),
    "KL to the reference model": ("on the policy's responses, nats per token", (metric_names.KL_REF,)),
    "Cross-entropy of refinements": (
        "−log π_θ(a′) of accepted ones, nats per token. Dotted: what mode sft adds to the loss, before η; it is "
        "divided by the tokens of the batch (constraint.sft_normaliser)",
        (metric_names.CROSS_ENTROPY_ACCEPTED, metric_names.SFT_CROSS_ENTROPY),
    ),
}
"""The pictures that show all arms at once: title, caption, and metrics, the second of which is dotted."""
STAGES = {
    "gen": "policy writes",
    "reward": "reward model",
    metric_names.REFINE_TIMER: "refine and score",
    metric_names.WAIT_TIMER: "wait for the refiner",
    metric_names.LOG_PROB_TIMER: "log π_θ(a′)",
    metric_names.KL_TIMER: "KL for the metric",
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
"""The timers of a step's parts, verl's and ours, each with its name in the picture."""
SMALL = 0.02
"""The share of all seconds below which a stage is shown as part of "other"."""
NOT_BETTER = "refiner/not_better"
"""The number of attempts that no other metric counts; a run does not write it."""
KINDS = {
    VERDICTS[Verdict.ACCEPTED]: (metric_names.NUM_ACCEPTED, "#2a9d6f"),
    VERDICTS[Verdict.OWN]: (metric_names.NUM_OWN, "#8fd0b5"),
    VERDICTS[Verdict.NOT_BETTER]: (NOT_BETTER, "#9aa3b2"),
    **{VERDICTS[one]: (metric_names.failed_for(one), "#d0463b") for one in FAILURES},
    **{VERDICTS[one]: (metric_names.skipped_for(one), "#c9d6f2") for one in SKIPPED},
}
"""The outcomes of responses: metric and colour."""
TOKENS = {
    "responses": metric_names.TOKENS_ROLLOUT,
    "refiner reads": metric_names.TOKENS_REFINE_PROMPT,
    "refiner writes": metric_names.TOKENS_REFINE,
    "policy learns from, without refinements": metric_names.TOKENS_UPDATE_ACTOR,
}


def pictures(arms: list[Arm]) -> Iterator[dict[str, Any]]:
    """Yield each picture that has numbers: its title, caption, arm (None: all) and plotly figure."""
    scored = sorted({name for arm in arms for name in arm.table if name.startswith("val-core/")})
    titles = {f"Validation: {name.removeprefix('val-core/')}": ("on held-out data", (name,)) for name in scored[:4]}
    own = {name: (said, (name,)) for arm in arms for run in arm.runs for name, said in run.meanings.items()}
    for title, (caption, metrics) in {**LINES, **titles, **own}.items():
        figure = go.Figure()
        for (index, arm), (number, metric) in itertools.product(enumerate(arms), enumerate(metrics)):
            _add_line(figure, arm, metric, arm.name, COLOURS[index % len(COLOURS)], is_second=number > 0)
        caption += ". Line: mean of the runs; band: their range" if any(len(arm.runs) > 1 for arm in arms) else ""
        yield from _picture(title, caption, None, figure)
    for index, arm in enumerate(arms):
        figure, prefix = go.Figure(), metric_names.IMPROVEMENT_RATIO_OF
        sources = sorted(name for name in arm.table if name.startswith(prefix))
        for metric, colour in zip(sources, itertools.cycle(COLOURS), strict=False):
            _add_line(figure, arm, metric, metric.removeprefix(prefix), colour)
        caption = "share of a source's responses that their refinement beats (by_source)"
        yield from _picture("Improvement ratio by data source", caption, index, figure)
        yield from _of_steps(index, arm)
        figure = go.Figure()
        for (label, metric), colour in zip(TOKENS.items(), COLOURS, strict=False):
            _add_line(figure, arm, metric, label, colour)
        yield from _picture("Tokens of a step", "", index, figure)


def _add_line(figure: go.Figure, arm: Arm, metric: str, name: str, colour: str, *, is_second: bool = False) -> None:
    """Draw a metric's mean over the runs of an arm, in a band that is their range."""
    curve = arm.curve(metric)
    if curve.empty:
        return
    steps, low, high = curve.index.tolist(), curve["min"].tolist(), curve["max"].tolist()
    name = escape(name)
    if len(arm.runs) > 1:
        edges = {"x": steps + steps[::-1], "y": high + low[::-1], "mode": "lines", "line_width": 0, "fill": "toself"}
        figure.add_scatter(
            **edges, fillcolor=colour, opacity=0.18, hoverinfo="skip", legendgroup=name, showlegend=False
        )
    figure.add_scatter(
        x=steps,
        y=curve["mean"].tolist(),
        name=name,
        mode="lines+markers" if len(steps) < 30 else "lines",
        line={"color": colour, "dash": "dot" if is_second else "solid"},
        legendgroup=name,
        showlegend=not is_second,
    )


def _of_steps(index: int, arm: Arm) -> Iterator[dict[str, Any]]:
    """Yield the stacked pictures of one arm's steps: seconds by stage, and responses by verdict."""
    stages = {metric_names.seconds_of(stage): label for stage, label in STAGES.items()}
    outcomes = (metric for metric, _ in KINDS.values())
    columns = ["step", metric_names.STEP_S, *stages, metric_names.NUM_ATTEMPTED, *outcomes]
    steps = arm.table.reindex(columns=columns).groupby("step").mean().dropna(subset=metric_names.STEP_S).fillna(0.0)
    whole, seconds = steps[metric_names.STEP_S], steps[list(stages)].rename(columns=stages)
    seconds = seconds.loc[:, seconds.sum() > SMALL * whole.sum()]
    seconds["other"] = (whole - seconds.sum(axis=1)).clip(lower=0.0)
    yield from _stacked("Seconds of a step, by stage", "", index, seconds, OTHER)
    scored = steps[metric_names.NUM_ATTEMPTED] - steps[[metric_names.failed_for(one) for one in FAILURES]].sum(axis=1)
    steps[NOT_BETTER] = scored - steps[metric_names.NUM_ACCEPTED]
    kinds = pandas.DataFrame({name: steps[metric] for name, (metric, _) in KINDS.items()})
    colours = {name: colour for name, (_, colour) in KINDS.items()}
    caption = "responses of a step, by the verdict on their refinement"
    yield from _stacked("What became of the responses", caption, index, kinds, colours)


def _stacked(
    title: str, caption: str, arm: int, table: pandas.DataFrame, colours: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield a picture of a table's columns as bars on each other, without empty columns."""
    figure = go.Figure(layout={"barmode": "stack", "bargap": 0.1 if len(table) < 100 else 0})
    for index, (name, values) in enumerate(table.loc[:, table.any()].items()):
        marker = {"color": colours.get(str(name), COLOURS[index % len(COLOURS)]), "line_width": 0}
        figure.add_bar(x=table.index.tolist(), y=values.tolist(), name=name, marker=marker)
    yield from _picture(title, caption, arm, figure)


def _picture(title: str, caption: str, arm: int | None, figure: go.Figure) -> Iterator[dict[str, Any]]:
    if figure.data:
        figure.update_layout(template="none", hovermode="x unified", xaxis_title="step")
        yield {"title": title, "caption": caption, "arm": arm, "figure": figure.to_plotly_json()}
