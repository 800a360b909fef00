"""The table of refinements: counts of all of them, and a sample that a page can hold."""

import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from recipe.report.diff import Piece, pieces
from recipe.report.runs import Run, finite, printable

VERDICTS = {
    "accepted": "kept: its reward is higher than the response's",
    "not_better": "scored, but its reward is not higher",
    "own": "solved, and imitated itself",
    "truncated": "cut by the length limit",
    "empty": "no text",
    "timeout": "not finished in time",
    "request": "refused or lost by the refiner",
    "reward": "the reward function failed on it",
    "worker": "lost with the process that refined it",
    "max_reward": "not attempted: the reward cannot get better",
    "not_chosen": "not attempted: others of its group were chosen",
    "too_long": "not attempted: too long for the refiner's context",
    "no_turn": "not attempted: the session does not end with a turn of the policy",
}
"""What became of a response in the refine stage, in the order of the table."""
MAX_CHARS = 8000
"""A longer text is shown up to here, and says so."""


@dataclass(slots=True, kw_only=True)
class Index:
    """What is known of all refinements of a run after one reading.

    Example: ``Index(verdicts=["accepted", "truncated"], rewards={(1, "u_0_0"): (-0.3, 1.0)})``.
    """

    verdicts: list[str] = field(default_factory=list)
    """Of every line."""
    rewards: dict[tuple[int, str], tuple[float | None, float | None]] = field(default_factory=dict)
    """Rewards of response and refinement, of the pairs asked for, by step and key."""


def index(run: Run, wanted: set[tuple[int, str]]) -> Index:
    """Read all refinements of a run and keep little of them: they can be gigabytes."""
    found = Index()
    for row in run.rows("refinements"):
        found.verdicts.append(sys.intern(printable(row["verdict"])))
        place = (row["step"], row["key"])
        if place in wanted:
            found.rewards[place] = (finite(row["reward"]), finite(row["refined_reward"]))
    return found


def split(total: int, sizes: list[int]) -> list[int]:
    """Share a total out over heaps, equally as far as their sizes let: 10 over 2, 9, 9 is 2, 4, 4."""
    shares = [0] * len(sizes)
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    for rank, place in enumerate(order):
        shares[place] = min(sizes[place], total // (len(sizes) - rank))
        total -= shares[place]
    return shares


def choose(indexes: list[Index], num_rows: int) -> list[set[int]]:
    """Choose the lines of each run to show: equal shares for the runs, in a run for the verdicts, then at random.

    So a rare verdict is there as well. The same files give the same choice.
    """
    chosen = []
    for found, share in zip(indexes, split(num_rows, [len(found.verdicts) for found in indexes]), strict=True):
        lines: dict[str, list[int]] = {}
        for line, verdict in enumerate(found.verdicts):
            lines.setdefault(verdict, []).append(line)
        shares = split(share, [len(heap) for heap in lines.values()])
        draw = random.Random(0)
        heaps = zip(lines.values(), shares, strict=True)
        chosen.append({line for heap, size in heaps for line in draw.sample(heap, size)})
    return chosen


def counts(indexes: list[Index]) -> Counter[str]:
    """Count the verdicts of some runs, in the order of the table; unknown ones come last."""
    counted = Counter(verdict for found in indexes for verdict in found.verdicts)
    order = [verdict for verdict in VERDICTS if verdict in counted]
    return Counter({verdict: counted[verdict] for verdict in [*order, *sorted(set(counted) - set(order))]})


def table(runs: list[Run], chosen: list[set[int]]) -> dict[str, Any]:
    """Return the chosen rows for the page's script.

    Returns:
        ``prompts``, each once, and ``rows``: run and prompt by place, step, verdict, both rewards, and either the
        pieces of the diff or, where nothing was scored, the response and what is known of the attempt.
    """
    prompts: dict[str, int] = {}
    rows = []
    for place, (run, lines) in enumerate(zip(runs, chosen, strict=True)):
        for row in run.rows("refinements", keep=lines):
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
    texts = [(str(message["role"]), message["content"]) for message in messages]
    parts = [content if isinstance(content, str) else str(content) for _, content in texts]
    if len(parts) > 1:
        parts = [f"{role}: {part}" for (role, _), part in zip(texts, parts, strict=True)]
    return _clipped("\n\n".join(parts))


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    response = _clipped(row["response"])
    if row["refined"] is None:
        return {"response": response, "detail": _clipped(row["detail"])}
    diff: list[Piece] = pieces(response, _clipped(row["refined"]))
    return {"pieces": [part for piece in diff for part in piece]}


def _clipped(text: str) -> str:
    more = len(text) - MAX_CHARS
    return printable(text if more <= 0 else f"{text[:MAX_CHARS]}\n[{more:,} more characters are in the run's records]")
