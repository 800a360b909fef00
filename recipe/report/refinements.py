"""The table of refinements: counts of all of them, and a sample that a page can hold."""

import random
import sys
from collections import Counter, defaultdict
from typing import Any

from recipe.report.diff import pieces
from recipe.report.runs import Run, finite, printable

MAX_CHARS = 8000
"""A longer text is shown up to here, and says so."""


def verdicts_of(run: Run) -> list[str]:
    """Read the verdicts of all responses of a run; nothing else is kept, since the records can be gigabytes."""
    return [sys.intern(printable(row["verdict"])) for row in run.refinements()]


def choose(verdicts: list[list[str]], num_rows: int) -> list[set[int]]:
    """Choose the rows of each run to show: as many of every verdict of every run, as far as there are, at random.

    So a rare verdict is there as well. The same files give the same choice.
    """
    heaps: dict[tuple[int, str], list[int]] = defaultdict(list)
    for run, of_run in enumerate(verdicts):
        for row, verdict in enumerate(of_run):
            heaps[run, verdict].append(row)
    draw, chosen = random.Random(0), [set[int]() for _ in verdicts]
    drawn = [enumerate(draw.sample(rows, min(num_rows, len(rows)))) for rows in heaps.values()]
    ranks = [(rank, run, row) for (run, _), rows in zip(heaps, drawn, strict=True) for rank, row in rows]
    for _, run, row in sorted(ranks)[:num_rows]:
        chosen[run].add(row)
    return chosen


def counts(verdicts: list[list[str]]) -> Counter[str]:
    """Count the verdicts of some runs."""
    return Counter(verdict for of_run in verdicts for verdict in of_run)


def table(runs: list[Run], chosen: list[set[int]]) -> dict[str, Any]:
    """Return the chosen rows for the page's script.

    Returns:
        ``prompts``, each once, and ``rows``: run and prompt by place, step, verdict, both rewards, and either the
        pieces of the diff or, where nothing was scored, the response and what is known of the attempt.
    """
    prompts: dict[str, int] = {}
    rows = []
    for place, (run, wanted) in enumerate(zip(runs, chosen, strict=True)):
        for row in (row for number, row in enumerate(run.refinements()) if number in wanted):
            prompt = prompt_text(row["prompt"])
            rows.append(
                {
                    "run": place,
                    "step": row["step"],
                    "verdict": printable(row["verdict"]),
                    "reward": finite(row["reward"]),
                    "refined_reward": finite(row["refined_reward"]),
                    "prompt": prompts.setdefault(prompt, len(prompts)),
                    **_texts(row),
                }
            )
    return {"prompts": list(prompts), "rows": rows}


def prompt_text(messages: list[dict[str, Any]]) -> str:
    """Return a chat as text; the role is named where there is more than one message."""
    contents = (message["content"] for message in messages)
    parts = [content if isinstance(content, str) else str(content) for content in contents]
    if len(parts) > 1:
        parts = [f"{message['role']}: {part}" for message, part in zip(messages, parts, strict=True)]
    return _clipped("\n\n".join(parts))


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    response = _clipped(row["response"])
    if row["refined"] is None:
        return {"response": response, "detail": _clipped(row["detail"])}
    return {"pieces": [part for piece in pieces(response, _clipped(row["refined"])) for part in piece]}


def _clipped(text: str) -> str:
    more = len(text) - MAX_CHARS
    return printable(text if more <= 0 else f"{text[:MAX_CHARS]}\n[{more:,} more characters are in the run's records]")
