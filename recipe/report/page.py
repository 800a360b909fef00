"""The report as one HTML file that needs no server and no network, and its figures as PNG files beside it."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from recipe.report import figures, refinements, series
from recipe.report.arms import Arm, differences, seeds
from recipe.report.runs import Run, printable
from recipe.report.series import Quantity

TEMPLATES = Path(__file__).parent / "templates"
MAX_VALIDATIONS = 8


def write(arms: list[Arm], page: Path, *, left_out: list[str], num_rows: int) -> list[Path]:
    """Write the page, and its figures into a folder beside it (``report.html``: ``report_figures``).

    Args:
        arms: At least one, each with its runs.
        page: The HTML file.
        left_out: A line on each folder that has nothing to show.
        num_rows: Refinements in the table at most.

    Returns:
        The files, the page first.

    Raises:
        ValueError: If a file of a run is damaged.
    """
    runs = [run for arm in arms for run in arm.runs]
    verdicts = [refinements.verdicts_of(run) for run in runs]
    chosen = refinements.choose(verdicts, num_rows)
    by_run = dict(zip((run.name for run in runs), verdicts, strict=True))
    of_arms = [refinements.counts([by_run[run.name] for run in arm.runs]) for arm in arms]
    drawn = _curves(arms, runs)
    scores = series.validations(runs)[:MAX_VALIDATIONS]
    text = _render(
        **_head(arms, runs, left_out),
        arms=[_summary(arm, scores) for arm in arms],
        curves=[_entry(quantity, drawn) for quantity in series.QUANTITIES if quantity.slug in drawn],
        unmeasured=[quantity.title for quantity in series.QUANTITIES if quantity.slug not in drawn],
        validations=[_entry(quantity, drawn) for quantity in scores],
        num_more_validations=len(series.validations(runs)) - len(scores),
        verdicts=[verdict for verdict, _ in refinements.counts(verdicts).most_common()],
        verdict_counts=of_arms,
        num_refinements=sum(counted.total() for counted in of_arms),
        num_shown=sum(map(len, chosen)),
        data=_script_data({"runs": [run.name for run in runs], **refinements.table(runs, chosen)}),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    folder = page.with_name(f"{page.stem}_figures")
    folder.mkdir(exist_ok=True)
    for slug, figure in drawn.items():
        (folder / f"{slug}.png").write_bytes(figures.png(figure))
    return [page, *(folder / f"{slug}.png" for slug in drawn)]


def _curves(arms: list[Arm], runs: list[Run]) -> dict[str, Figure]:
    """Draw each quantity that any run measured, by slug."""
    names, drawn = [arm.name for arm in arms], {}
    for quantity in [*series.QUANTITIES, *series.validations(runs)[:MAX_VALIDATIONS]]:
        lines = {place: points for place, arm in enumerate(arms) if (points := series.curve(arm, quantity))}
        if lines:
            drawn[quantity.slug] = figures.panel(quantity, lines, names)
    return drawn


def _entry(quantity: Quantity, drawn: dict[str, Figure]) -> dict[str, Any]:
    return {"title": quantity.title, "svg": Markup(figures.svg(drawn[quantity.slug], quantity.slug))}


def _head(arms: list[Arm], runs: list[Run], left_out: list[str]) -> dict[str, Any]:
    names = [arm.name for arm in arms]
    values: dict[str, dict[str, list[str]]] = {}
    for setting, by_arm in differences(arms).items():
        for name, value in zip(names, by_arm, strict=True):
            values.setdefault(setting, {}).setdefault(value, []).append(name)
    places = {run.name: place for place, arm in enumerate(arms) for run in arm.runs}
    return {
        "title": names,
        "left_out": [printable(line) for line in left_out],
        "num_steps": _span([run.metrics[-1]["step"] for run in runs]),
        "many_runs": len(runs) > len(arms),
        "differences": values,
        "colours": [figures.colour(place) for place in range(len(arms))],
        "runs": [
            {
                **{"name": run.name, "arm": places[run.name], "path": printable(str(run.path)), "seed": seeds(run)},
                **{"num_steps": run.metrics[-1]["step"], "final": series.final(run, series.REWARD)},
            }
            for run in runs
        ],
    }


def _summary(arm: Arm, scores: list[Quantity]) -> dict[str, Any]:
    return {
        **{"name": arm.name, "num_runs": len(arm.runs)},
        "num_steps": _span([run.metrics[-1]["step"] for run in arm.runs]),
        "validations": [series.over_runs(arm, quantity, series.last) for quantity in scores],
        "final": series.over_runs(arm, series.REWARD, series.final),
        "kl": series.over_runs(arm, series.KL, series.final),
        "cross_entropy": series.over_runs(arm, series.CE_ACCEPTED, series.final),
        "improvement": series.over_runs(arm, series.IMPROVEMENT, series.over_all_steps),
        "seconds": series.over_runs(arm, series.SECONDS, series.over_all_steps),
    }


def _span(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


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
