"""The page of the comparison of sources, from its committed lines."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.bootstrap import interval
from experiments.sources.design import (
    ANSWERS,
    DRAWS,
    NUM_DRAWS,
    NUM_UNSOLVED,
    RESULTS,
    SECOND_SAMPLE,
    WAYS,
    Line,
    blocks,
    read,
    unsolved,
)
from recipe.online_refiner.method.pairs import Verdict

LEVEL = 1 - 0.05 / (len(WAYS) - 1)
"""Bonferroni's correction of 95 % for the comparisons with the second sample."""
KS = (1, 2, 4)
ENOUGH = 0.8
"""The share of the yield at k = 1 that a larger k must keep to be recommended."""
Lines = Sequence[Line]


def is_accepted(draw: Line) -> bool:
    """Return whether a draw scores higher, is no leak and is not the shown solution."""
    return draw["verdict"] == Verdict.ACCEPTED and not draw.get("copied", False)


def complete(lines: Lines) -> list[Line]:
    """Return the lines of the blocks that every way has refined."""
    number = Counter(line["block"] for line in lines)
    return [line for line in lines if number[line["block"]] == len(WAYS)]


def draws_of(lines: Lines, way: str) -> dict[int, list[Line]]:
    """Return the draws of a way by problem."""
    own = [line for line in lines if line["way"] == way]
    return {problem: found for line in own for problem, found in zip(line["problems"], line["draws"], strict=True)}


def counts(lines: Lines, way: str) -> np.ndarray:
    """Return a row for each problem, (problems, 2): its accepted draws and the tokens written, of a way."""
    found = draws_of(lines, way)
    return np.array(
        [[sum(map(is_accepted, own)), sum(one["written"] for one in own)] for _, own in sorted(found.items())]
    )


def speeds(lines: Lines, way: str) -> np.ndarray:
    """Return a row for each block, (blocks, 2): its accepted draws and its CPU seconds, of a way."""
    own = sorted((line for line in lines if line["way"] == way), key=lambda line: line["block"])
    return np.array([[sum(is_accepted(one) for two in line["draws"] for one in two), line["cpu_s"]] for line in own])


def ratio(rows: np.ndarray) -> np.ndarray:
    """Return the ratio of two sums over (..., n, 2) rows."""
    sums = rows.sum(-2)
    return sums[..., 0] / sums[..., 1]


def against(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """Return the difference of two ratios over the same problems or blocks, with its corrected interval."""
    return interval(
        lambda rows: ratio(rows[..., :2]) - ratio(rows[..., 2:]), np.hstack([first, second]).tolist(), level=LEVEL
    )


def accepted_at(lines: Lines, way: str, k: int) -> float:
    """Return the mean probability that at least one of k draws is accepted, estimated from the draws of a problem."""
    worse = NUM_DRAWS - counts(lines, way)[:, 0].astype(int)
    return float(np.mean([1 - math.comb(number, k) / math.comb(NUM_DRAWS, k) for number in worse]))


def yield_at(lines: Lines, way: str, k: int) -> float:
    """Return accepted at k for each 1,000 tokens that k draws write."""
    return 1000 * accepted_at(lines, way, k) / (k * counts(lines, way)[:, 1].mean() / NUM_DRAWS)


def recommended(lines: Lines) -> tuple[list[str], int]:
    """Return the ways that the rule recommends, the best first, and the number of draws for the first.

    The second sample is returned if no way beats it; behind `solution`, which needs data with solutions, the next way
    follows.
    """
    base = counts(lines, SECOND_SAMPLE), speeds(lines, SECOND_SAMPLE)
    beats = []
    for way in WAYS:
        if way == SECOND_SAMPLE:
            continue
        is_ahead = against(counts(lines, way), base[0])[1] > 0
        if is_ahead and ratio(speeds(lines, way)) >= ratio(base[1]):
            beats.append(way)
    beats.sort(key=lambda way: -float(ratio(counts(lines, way))))
    ways = [*beats, SECOND_SAMPLE]
    chosen = ways[:2] if ways[0] == "solution" else ways[:1]
    enough = [k for k in KS if yield_at(lines, chosen[0], k) >= ENOUGH * yield_at(lines, chosen[0], 1)]
    return chosen, max(enough)


def said(values: tuple[float, float, float], scale: float = 1.0) -> str:
    """Return a difference with its interval."""
    mean, low, high = (scale * value for value in values)
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})".replace("-", "−")


def way_row(lines: Lines, way: str) -> str:
    """Return the row of a way in the main table."""
    own, base = counts(lines, way), counts(lines, SECOND_SAMPLE)
    speed, base_speed = speeds(lines, way), speeds(lines, SECOND_SAMPLE)
    cells = [f"`{way}`", *(f"{accepted_at(lines, way, k):.1%}" for k in KS)]
    cells += [f"{own[:, 1].mean() / NUM_DRAWS:.0f}", f"{1000 * ratio(own):.2f}"]
    cells += ["" if way == SECOND_SAMPLE else said(against(own, base), 1000), f"{100 * ratio(speed):.2f}"]
    cells += ["" if way == SECOND_SAMPLE else said(against(speed, base_speed), 100)]
    return f"| {' | '.join(cells)} |"


def verdict_row(lines: Lines, way: str) -> str:
    """Return a variant's row in the table of verdicts."""
    draws = [draw for own in draws_of(lines, way).values() for draw in own]
    number = Counter("copied" if draw.get("copied") else draw["verdict"] for draw in draws)
    text = ", ".join(f"{name} {count / len(draws):.1%}" for name, count in number.most_common())
    return f"| `{way}` | {len(draws)} | {text} |"


def verdict(lines: Lines, answers: Lines) -> str:
    """Return what the rule says, or that it is not to be applied yet."""
    planned = len(list(blocks(answers)))
    if len(unsolved(answers)) < NUM_UNSOLVED or len(lines) < planned:
        there = f"{len(draws_of(lines, SECOND_SAMPLE))} of {NUM_UNSOLVED} problems are there."
        return f"{there} **Nothing is decided before all are.**"
    ways, k = recommended(lines)
    names = ", and without solutions ".join(f"`{way}`" for way in ways)
    return f"All {NUM_UNSOLVED} problems are there. By the rule, {names} is recommended, with k = {k}."


def text_of(answers: Lines, draws: Lines) -> str:
    """Return the text of the page."""
    lines = complete(draws)
    head = [
        "# Which source of better answers wins without training?",
        "Written by `python -m experiments.sources page` from the lines beside it. What counts and how it is\n"
        "decided: [PROTOCOL.md](../../sources/PROTOCOL.md).",
        f"{len(answers)} problems were answered, {len(unsolved(answers))} of them unsolved. {verdict(lines, answers)}",
    ]
    if not lines:
        return "\n\n".join(head) + "\n"
    table = [
        "| way | accepted at 1 | at 2 | at 4 | tokens a draw | per 1,000 tokens | difference | per 100 CPU s "
        "| difference |",
        "|---" * 9 + "|",
        *(way_row(lines, way) for way in WAYS),
    ]
    fates = ["| way | draws | what became of them |", "|---" * 3 + "|", *(verdict_row(lines, way) for way in WAYS)]
    note = (
        f"Differences are from `{SECOND_SAMPLE}`, with {LEVEL:.2%} bootstrap intervals over problems and over blocks."
    )
    return "\n\n".join([*head, "\n".join(table), note, "\n".join(fates)]) + "\n"


def write(folder: Path = RESULTS) -> None:
    """Write README.md beside the lines."""
    text = text_of(read(folder / ANSWERS), read(folder / DRAWS))
    (folder / "README.md").write_text(text, encoding="utf-8")
