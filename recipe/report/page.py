"""The report as one HTML file that needs no server and no network."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from recipe.report import figures, refinements, series
from recipe.report.arms import Arm, differences
from recipe.report.series import Quantity

TEMPLATES = Path(__file__).parent / "templates"


def write(arms: list[Arm], page: Path, *, num_rows: int) -> None:
    """Write the page.

    Args:
        arms: At least one, each with its runs.
        page: The HTML file.
        num_rows: Refinements in the table at most.

    Raises:
        ValueError: If a file of a run is damaged.
    """
    runs = [run for arm in arms for run in arm.runs]
    verdicts = [refinements.verdicts_of(run) for run in runs]
    chosen = refinements.choose(verdicts, num_rows)
    names = [arm.name for arm in arms]
    values: dict[str, dict[str, list[str]]] = {}
    for setting, by_arm in differences(arms).items():
        for name, value in zip(names, by_arm, strict=True):
            values.setdefault(setting, {}).setdefault(value, []).append(name)
    scores = series.validations(runs)
    drawn = {quantity: _drawn(quantity, arms) for quantity in (*series.QUANTITIES, *scores)}
    of_runs = iter(verdicts)
    text = _render(
        colours=[figures.colour(place) for place in range(len(arms))],
        arms=[
            {**_summary(arm, scores), "verdicts": refinements.counts([next(of_runs) for _ in arm.runs])} for arm in arms
        ],
        runs=[run.name for run in runs],
        differences=values,
        scores=[quantity.title for quantity in scores],
        curves={quantity.title: svg for quantity, svg in drawn.items() if svg},
        unmeasured=[quantity.title for quantity, svg in drawn.items() if not svg],
        verdicts=[verdict for verdict, _ in refinements.counts(verdicts).most_common()],
        num_refinements=sum(map(len, verdicts)),
        num_shown=sum(map(len, chosen)),
        data=_script_data({"runs": [run.name for run in runs], **refinements.table(runs, chosen)}),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _drawn(quantity: Quantity, arms: list[Arm]) -> Markup:
    """Return a figure; nothing if no run measured it."""
    lines = {place: points for place, arm in enumerate(arms) if (points := series.curve(arm, quantity))}
    if not lines:
        return Markup()
    return Markup(figures.svg(figures.panel(quantity, lines, [arm.name for arm in arms]), quantity.title))


def _summary(arm: Arm, scores: list[Quantity]) -> dict[str, Any]:
    steps = sorted({run.metrics[-1]["step"] for run in arm.runs})
    return {
        **{"name": arm.name, "runs": [run.name for run in arm.runs]},
        "num_steps": " to ".join(map(str, dict.fromkeys((steps[0], steps[-1])))),
        "final": series.over_runs(arm, series.REWARD, series.final),
        "scores": [series.over_runs(arm, quantity, series.last) for quantity in scores],
        "kl": series.over_runs(arm, series.KL, series.final),
        "cross_entropy": series.over_runs(arm, series.CE_ACCEPTED, series.final),
        "improvement": series.over_runs(arm, series.IMPROVEMENT, series.over_all_steps),
        "seconds": series.over_runs(arm, series.SECONDS, series.over_all_steps),
    }


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
