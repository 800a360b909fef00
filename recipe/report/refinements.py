"""The table of refinements: counts of all of them, and a sample that a page can hold, with the words that changed."""

import random
import re
import sys
from collections import Counter, defaultdict
from itertools import chain
from typing import Any

from rapidfuzz.distance import Indel

from recipe.report.runs import Run, finite, printable

MAX_CHARS = 8000
"""A longer text is shown up to here, and says so."""
KEPT, TAKEN_OUT, PUT_IN = 0, -1, 1
Piece = tuple[int, str]
"""KEPT, TAKEN_OUT or PUT_IN, and the text."""
KINDS = {"equal": KEPT, "delete": TAKEN_OUT, "insert": PUT_IN}
WORD = re.compile(r"\s+|\w+|[^\w\s]")
MIN_SIMILARITY = 0.4
"""Texts that share less of their words are shown as replaced: the shreds they share by chance would not help."""


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
    return Counter(chain.from_iterable(verdicts))


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
            response = _clipped(row["response"])
            if row["refined"] is None:
                texts: dict[str, Any] = {"response": response, "detail": _clipped(row["detail"])}
            else:
                texts = {"pieces": list(chain.from_iterable(pieces(response, _clipped(row["refined"]))))}
            rows.append(
                {
                    **{"run": place, "step": row["step"], "verdict": printable(row["verdict"])},
                    **{"reward": finite(row["reward"]), "refined_reward": finite(row["refined_reward"])},
                    **{"prompt": prompts.setdefault(prompt_text(row["prompt"]), len(prompts)), **texts},
                }
            )
    return {"prompts": list(prompts), "rows": rows}


def prompt_text(messages: list[dict[str, Any]]) -> str:
    """Return a chat as text; the role is named where there is more than one message."""
    names = [f"{message['role']}: " if len(messages) > 1 else "" for message in messages]
    return _clipped("\n\n".join(f"{name}{message['content']}" for name, message in zip(names, messages, strict=True)))


def _clipped(text: str) -> str:
    more = len(text) - MAX_CHARS
    return printable(text if more <= 0 else f"{text[:MAX_CHARS]}\n[{more:,} more characters are in the run's records]")


def pieces(before: str, after: str) -> list[Piece]:
    """Return two texts as one list of pieces: all but those put in make `before`, all but those taken out `after`.

    ``pieces("x - y", "x + y")`` is ``[(0, "x "), (-1, "-"), (1, "+"), (0, " y")]``.
    """
    old, new = WORD.findall(before), WORD.findall(after)
    if Indel.normalized_similarity(old, new) < MIN_SIMILARITY:
        return [(kind, text) for kind, text in ((TAKEN_OUT, before), (PUT_IN, after)) if text]
    return [
        (
            KINDS[op.tag],
            "".join(new[op.dest_start : op.dest_end] if op.tag == "insert" else old[op.src_start : op.src_end]),
        )
        for op in Indel.opcodes(old, new)
    ]
