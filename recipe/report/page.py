"""The report as one HTML file that needs no server and no network."""

import base64
import difflib
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
from matplotlib.figure import Figure

from recipe.report import figures
from recipe.report.runs import Run, by_arm

TEMPLATE = Path(__file__).parent / "templates" / "report.html.jinja"
NUM_TOKEN_MAPS = 4
LAST_STEPS = 3
"""A final figure is the mean over so many steps."""


def write_report(runs: list[Run], output: Path, num_rows: int) -> list[Path]:
    """Write report.html and the figures as PNG files.

    Args:
        runs: What to report.
        output: Folder; made if absent.
        num_rows: Refinements in the table at most, spread evenly over each run.

    Returns:
        The files, the page first.
    """
    output.mkdir(parents=True, exist_ok=True)
    pairs = [pair for run in runs for pair in _ranked_pairs(run)][:NUM_TOKEN_MAPS]
    drawn = {"curves": figures.curves(runs), "costs": figures.costs(runs)}
    drawn |= {f"tokens_{n + 1}": figures.token_map(row) for n, row in enumerate(pairs)}
    files, images = [], {}
    for name, figure in drawn.items():
        images[name] = _png(figure)
        files.append(output / f"{name}.png")
        files[-1].write_bytes(images[name])
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        images={name: base64.b64encode(data).decode() for name, data in images.items()},
        arms=[_summary(arm, members) for arm, members in by_arm(runs).items()],
        rows=list(_rows(runs, num_rows)),
        num_refinements=sum(len(run.refinements) for run in runs),
    )
    path = output / "report.html"
    path.write_text(page, encoding="utf-8")
    return [path, *files]


def _ranked_pairs(run: Run) -> list[dict[str, Any]]:
    """Return a run's recorded pairs, the largest gain of reward first."""
    gains = {
        (row["step"], row["key"]): row["refined_reward"] - row["reward"]
        for row in run.refinements
        if row["refined_reward"] is not None
    }
    return sorted(run.tokens, key=lambda pair: -gains.get((pair["step"], pair["key"]), 0.0))


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _summary(arm: str, runs: list[Run]) -> dict[str, Any]:
    def mean(metric: str, last: int | None = None) -> float:
        values = [row.get(metric) or 0.0 for run in runs for row in run.metrics[-(last or len(run.metrics)) :]]
        return sum(values) / len(values)

    return {
        "arm": arm,
        "num_runs": len(runs),
        "num_steps": max(run.metrics[-1]["step"] for run in runs),
        "first_reward": sum(run.metrics[0]["reward/mean"] for run in runs) / len(runs),
        "last_reward": mean("reward/mean", LAST_STEPS),
        "improvement": mean("refiner/improvement_ratio"),
        "kl": mean("kl_ref/k3", LAST_STEPS),
        "seconds": mean("timing_s/step"),
    }


def _rows(runs: list[Run], num_rows: int) -> Iterator[dict[str, Any]]:
    share = max(1, num_rows // len(runs))
    for run in runs:
        every = max(1, -(-len(run.refinements) // share))
        for row in run.refinements[::every]:
            yield {
                "run": run.path.name,
                "step": row["step"],
                "verdict": row["verdict"],
                "reward": row["reward"],
                "refined_reward": row["refined_reward"],
                "prompt": row["prompt"][-1]["content"],
                "diff": jinja2.utils.markupsafe.Markup(_diff(row["response"], row["refined"] or row["detail"])),
            }


def _diff(before: str, after: str) -> str:
    """Return two texts as one, words taken out and put in marked as <del> and <ins>."""
    old, new = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (before, after))
    pieces = []
    for tag, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if tag == "equal":
            pieces.append(html.escape("".join(old[i:j])))
            continue
        if j > i:
            pieces.append(f"<del>{html.escape(''.join(old[i:j]))}</del>")
        if m > k:
            pieces.append(f"<ins>{html.escape(''.join(new[k:m]))}</ins>")
    return "".join(pieces)
