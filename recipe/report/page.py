"""The page: its numbers and texts as data, its scripts and its style in one file.

Texts of models are data. They stand in an island of JSON in which nothing looks like HTML, and the page's script puts
them into the document as text. The page's policy (``Content-Security-Policy``) lets no other script run, by hash, and
nothing be loaded.
"""

import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from rapidfuzz.distance import Indel

from recipe.report.curves import pictures
from recipe.report.findings import control_of, facts, findings, last_signs, origin, summary, table
from recipe.report.reading import Arm, Run
from recipe.report.words import VERDICTS

HERE = Path(__file__).parent
WORDS = re.compile(r"\s+|\w+|[^\w\s]")
SHOWN = ("step", "verdict", "reward", "refined_reward", "data_source", "feedback", "detail")
"""The fields of a record that the page shows unchanged."""
KEPT, TAKEN, ADDED = 0, -1, 1
"""The kinds of a diff's parts: in both texts, in the response only, in the refinement only."""


def write_page(arms: list[Arm]) -> bytes:
    """Return the HTML page about the runs of some arms."""
    names = [(run, arm.name if len(arm.runs) == 1 else f"{arm.name}: {run.name}") for arm in arms for run in arm.runs]
    rows, chats = _rows([run for run, _ in names])
    data = {
        "pictures": list(pictures(arms)),
        "rows": rows,
        "chats": chats,
        "images": {name: _url(content) for run, _ in names for name, content in run.thumbnails.items()},
        "runs": [name for _, name in names],
        "verdicts": VERDICTS,
        "first": next((str(index) for index, arm in enumerate(arms) if arm.refines), "0"),
    }
    scripts = [get_plotlyjs(), (HERE / "page.js").read_text(encoding="utf-8")]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("page.html.jinja").render(
        arms=arms,
        facts=facts,
        last_signs=last_signs,
        findings=partial(findings, control=control_of(arms)),
        summary=summary,
        origin=origin,
        table=Markup(table(arms).to_html(border=0)),
        data=htmlsafe_json_dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")),
        policy=" ".join(f"'sha256-{one}'" for one in hashes),
        scripts=[Markup(script) for script in scripts],
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        written_at=datetime.now(UTC),
        num_shown=len(rows),
        num_records=sum(run.num_records for run, _ in names),
    )
    return page.encode("utf-8", errors="backslashreplace")  # in JSON a lone surrogate is escaped in the same way


def _rows(runs: list[Run]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the records as the page's script reads them, and the chats, which the records refer to by index."""
    rows: list[dict[str, Any]] = []
    chats: dict[str, int] = {}
    for number, run in enumerate(runs):
        for record in run.records:
            chat = json.dumps([[str(one.get("role", "")), str(one.get("content", ""))] for one in record["prompt"]])
            shown = {name: record[name] for name in SHOWN}
            shown["diff"] = diff(record["response"], record["refined"])
            shown["images"] = record.get("images", [])
            shown["tokens"] = run.tokens.get((record["step"], record["key"]))
            rows.append({"run": number, "chat": chats.setdefault(chat, len(chats)), **shown})
    return rows, [json.loads(chat) for chat in chats]


def _url(content: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def diff(response: str, refined: str | None) -> list[tuple[int, str]]:
    """Return the word-level diff of a response and its refinement: parts that are kept, removed or added.

    Example: ``diff("a b", "a c")`` is ``[(0, "a "), (-1, "b"), (1, "c")]``. Without a refinement all is kept.
    """
    if refined is None:
        return [(KEPT, response)]
    old, new = WORDS.findall(response), WORDS.findall(refined)
    parts: list[tuple[int, str]] = []
    taken, added = "", ""
    edits = list(Indel.opcodes(old, new))
    for index, edit in enumerate(edits):
        before, after = "".join(old[edit.src_start : edit.src_end]), "".join(new[edit.dest_start : edit.dest_end])
        is_gap = not before.strip() and 0 < index < len(edits) - 1  # a space between two changed words
        if edit.tag != "equal" or is_gap:
            taken, added = taken + before, added + after
            continue
        parts += [(TAKEN, taken), (ADDED, added), (KEPT, before)]
        taken, added = "", ""
    parts += [(TAKEN, taken), (ADDED, added)]
    return [part for part in parts if part[1]]
