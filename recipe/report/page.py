"""The report as one HTML file that needs no server and no network, and its figures as PNG files beside it."""

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from recipe.report import figures, preface, refinements, series, table, token_maps
from recipe.report.arms import Arm, differences, seeds
from recipe.report.comparison import compare
from recipe.report.costs import Costs, costs
from recipe.report.runs import Run, printable
from recipe.report.series import Quantity

TEMPLATES = Path(__file__).parent / "templates"
MAX_PAIRS = 60
"""Pairs with their tokens on the page."""
NUM_DRAWN_PAIRS = 4
"""Of these, so many as PNG: those that gained most."""
MAX_VALIDATIONS = 8
CURVES = "curves.csv"
MAX_TITLE_ARMS = 4


@dataclass(slots=True, kw_only=True)
class Report:
    """What to report.

    Example: ``Report(runs=[a, b], arms=[Arm(name="x", runs=[a, b])], left_out=[], num_rows=3000)``.
    """

    runs: list[Run]
    arms: list[Arm]
    """The same runs by arm."""
    left_out: list[str]
    """A line on each folder that has nothing to show."""
    num_rows: int
    """Refinements in the table at most."""
    preface: Path | None = None
    """A file in Markdown to open the page with: what was asked, what was found."""


def write(report: Report, page: Path) -> list[Path]:
    """Write the page, and its figures into a folder beside it (``report.html``: ``report_figures``).

    Returns:
        The files, the page first.

    Raises:
        ValueError: If a file of a run is damaged.
    """
    pairs = token_maps.choose(report.runs, MAX_PAIRS)
    found = [
        refinements.index(run, {(pair["step"], pair["key"]) for pair in members})
        for run, members in zip(report.runs, pairs, strict=True)
    ]
    maps = token_maps.table(pairs, found)
    chosen = refinements.choose(found, report.num_rows)
    by_run = dict(zip((run.name for run in report.runs), found, strict=True))
    verdicts = [refinements.counts([by_run[run.name] for run in arm.runs]) for arm in report.arms]
    curves, drawn = _curves(report)
    data: dict[str, Any] = {
        **{"runs": [run.name for run in report.runs], "arms": [arm.name for arm in report.arms], "curves": curves},
        "colours": [figures.colour(place) for place in range(len(report.arms))],
        "verdicts": refinements.VERDICTS,
        **{"ceLimit": figures.CE_LIMIT, "ceColours": figures.CE_COLOURS, "pairs": maps},
        **refinements.table(report.runs, chosen),
    }
    validations = [quantity for quantity in _validations(report) if quantity.slug in drawn]
    bars = _bars(report, measured := costs(report.arms))
    compared, profiles = _compared(report)
    text = _render(
        **_head(report),
        preface=preface.html(report.preface) if report.preface else "",
        curves=[_entry(quantity, drawn) for quantity in series.QUANTITIES if quantity.slug in drawn],
        unmeasured=[quantity.title for quantity in series.QUANTITIES if quantity.slug not in drawn],
        validations=[_entry(quantity, drawn) for quantity in validations],
        compared=compared,
        profiles=[{"title": name, "svg": Markup(figures.svg(figure, name))} for name, figure in profiles.items()],
        num_more_validations=len(series.validations(report.runs)) - len(_validations(report)),
        cost_figures=[{"title": name, "svg": Markup(figures.svg(figure, name))} for name, figure in bars.items()],
        cost_tables=[
            ("Seconds a step", "{:,.1f}", [one.seconds for one in measured]),
            ("Tokens a step", "{:,.0f}", [one.tokens for one in measured]),
        ],
        num_pairs=len(maps),
        num_recorded_pairs=sum(run.num_rows("tokens") for run in report.runs),
        verdicts=[(verdict, refinements.VERDICTS.get(verdict, "")) for verdict in refinements.counts(found)],
        verdict_counts=verdicts,
        num_refinements=sum(counted.total() for counted in verdicts),
        num_shown=sum(len(lines) for lines in chosen),
        arms=[_summary(arm, cost, validations) for arm, cost in zip(report.arms, measured, strict=True)],
        data=_script_data(data),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    best = sorted(maps, key=token_maps.gain, reverse=True)[:NUM_DRAWN_PAIRS]
    drawn |= bars | profiles | {f"tokens_{place}": figures.token_map(pair) for place, pair in enumerate(best, 1)}
    folder = page.with_name(f"{page.stem}_figures")
    images = _write_images(drawn, folder)
    table.write(report.arms, folder / CURVES)
    return [page, *images, folder / CURVES]


def _validations(report: Report) -> list[Quantity]:
    return series.validations(report.runs)[:MAX_VALIDATIONS]


def _curves(report: Report) -> tuple[dict[str, Any], dict[str, Figure]]:
    """Return each curve's numbers with the place of its axes for the page's script, and its figure, by slug."""
    window = series.smoothing(report.runs)
    names = [arm.name for arm in report.arms]
    steps = min(run.metrics[0]["step"] for run in report.runs), max(run.metrics[-1]["step"] for run in report.runs)
    numbers, drawn = {}, {}
    for quantity in [*series.QUANTITIES, *_validations(report)]:
        smooth = 1 if quantity.metric.startswith("val-") else window
        lines = {place: series.curve(arm, quantity, smooth) for place, arm in enumerate(report.arms)}
        lines = {place: points for place, points in lines.items() if points}
        if not lines:
            continue
        drawn[quantity.slug] = figure = figures.panel(quantity, lines, names=names, steps=steps, window=smooth)
        axes = figure.axes[0]
        numbers[quantity.slug] = {
            **{"left": axes.get_position().x0, "right": axes.get_position().x1, "steps": axes.get_xlim()},
            "lines": {
                arm: [[step, _rounded(point.mean), _rounded(point.spread)] for step, point in points.items()]
                for arm, points in lines.items()
            },
        }
    return numbers, drawn


def _compared(report: Report) -> tuple[list[dict[str, Any]], dict[str, Figure]]:
    """Return the comparisons of arms over their seeds, and a figure of each: of the reward and the first validation."""
    tables, drawn = [], {}
    for quantity in (series.REWARD, *_validations(report)[:1]):
        if lines := compare(report.arms, quantity):
            values = {line.place: line.values for line in lines}
            names, title = [arm.name for arm in report.arms], f"{quantity.title}: share of runs above"
            drawn[f"profile_{quantity.slug}"] = figures.profiles(values, names, title, f"final {quantity.unit}")
            tables.append({"title": quantity.title, "lines": lines})
    return tables, drawn


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _bars(report: Report, measured: list[Costs]) -> dict[str, Figure]:
    names = [arm.name for arm in report.arms]
    parts = {
        "seconds": ([one.seconds for one in measured], "Time of a step"),
        "tokens": ([one.tokens for one in measured], "Tokens of a step"),
    }
    return {
        unit: figures.stacked_bars(values, names, title, unit) for unit, (values, title) in parts.items() if values[0]
    }


def _entry(quantity: Quantity, drawn: dict[str, Figure]) -> dict[str, Any]:
    svg = Markup(figures.svg(drawn[quantity.slug], quantity.slug))
    return {"slug": quantity.slug, "title": quantity.title, "svg": svg}


def _head(report: Report) -> dict[str, Any]:
    names = [arm.name for arm in report.arms]
    more = len(names) - MAX_TITLE_ARMS
    num_arms = range(len(names))
    lengths = sorted({run.metrics[-1]["step"] for run in report.runs})
    values: dict[str, dict[str, list[str]]] = {}
    for setting, by_arm in differences(report.arms).items():
        for name, value in zip(names, by_arm, strict=True):
            values.setdefault(setting, {}).setdefault(value, []).append(name)
    places = {run.name: place for place, arm in enumerate(report.arms) for run in arm.runs}
    return {
        "title": names[:MAX_TITLE_ARMS] + ([f"and {more} more"] if more > 0 else []),
        "left_out": [printable(line) for line in report.left_out],
        "num_steps": _span(lengths),
        "many_runs": len(report.runs) > len(report.arms),
        "window": series.smoothing(report.runs),
        "max_bands": figures.MAX_BANDS,
        "differences": values,
        "colours": [figures.colour(place) for place in num_arms],
        "dashes": [figures.dash_array(place) for place in num_arms],
        "ce_limit": figures.CE_LIMIT,
        "runs": [
            {
                **{"name": run.name, "arm": places[run.name], "path": printable(str(run.path)), "seed": seeds(run)},
                **{"num_steps": run.metrics[-1]["step"], "final": series.final_of(run, series.REWARD)},
            }
            for run in report.runs
        ],
    }


def _summary(arm: Arm, cost: Costs, validations: list[Quantity]) -> dict[str, Any]:
    firsts = [value for run in arm.runs if (value := series.REWARD.value(run.metrics[0])) is not None]
    return {
        **{"name": arm.name, "num_runs": len(arm.runs), "hours": cost.hours},
        "num_steps": _span(sorted({run.metrics[-1]["step"] for run in arm.runs})),
        "validations": [series.last(arm, quantity) for quantity in validations],
        **{"first": series.stat(firsts), "final": series.final(arm, series.REWARD)},
        **{"kl": series.final(arm, series.KL), "cross_entropy": series.final(arm, series.CE_ACCEPTED)},
        "improvement": series.over_all_steps(arm, series.IMPROVEMENT),
        "seconds": sum(cost.seconds.values()),
    }


def _span(values: list[int]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _render(**values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["minus"] = lambda text: text.replace("-", "−")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.jinja").render(
        **values,
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )


def _script_data(data: dict[str, Any]) -> Markup:
    """Return JSON that an HTML parser cannot take for the end of its element, or for a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _write_images(drawn: dict[str, Figure], folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in drawn.items():
        paths.append(folder / f"{name}.png")
        paths[-1].write_bytes(figures.png(figure))
    return paths
