"""What is compared: the problems, the ways and the blocks (see PROTOCOL.md)."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.mini_apps.__main__ import row_of
from experiments.refiners import chains

Line = Mapping[str, Any]
RESULTS = Path(__file__).resolve().parents[1] / "results" / "sources"
ANSWERS, DRAWS = "answers.jsonl", "draws.jsonl"
"""The answers' file (one problem per line), and the draws' file (one block of problems per line)."""
PROBLEM_SEED, NUM_STEPS = 3, 3
NUM_PROBLEMS, NUM_UNSOLVED, AT_ONCE = 800, 300, 16
NUM_ANSWERS, NUM_DRAWS, MAX_TOKENS, MAX_MODEL_LEN = 4, 4, 192, 2048
BRIEFLY = "Write no comments and no docstring."
"""The end of every question: else most answers of the model are comments, and are cut before their program ends."""
BLOCK = 8
"""Unsolved problems that are refined at a time."""
STOP = "\n```\n"
"""The end of a program, at which answers and refinements end."""
HIGHEST = 1.0
AGAIN = Path(__file__).resolve().parents[1] / "refiners" / "ways" / "again.jinja"
SECOND_SAMPLE = "second_sample"
WAYS = {
    SECOND_SAMPLE: str(AGAIN),
    "hidden_feedback": "hidden+feedback",
    "solution": "apps+feedback+solution",
    "sibling": "hidden+feedback+sibling",
}
"""The ways as `online-refiner check` reads them: a template and its context."""


def rows() -> list[dict[str, Any]]:
    """Return the problems in verl's schema, in the order in which they are answered."""
    problems = chains.generate(NUM_PROBLEMS, seed=PROBLEM_SEED, length=NUM_STEPS)
    said = ({**problem, "question": f"{problem['question']}\n{BRIEFLY}"} for problem in problems)
    return [row_of(problem, index) for index, problem in enumerate(said)]


def options() -> argparse.Namespace:
    """Return the options with which `online-refiner check` would read the ways."""
    return argparse.Namespace(
        samples=NUM_ANSWERS, refiner=["temperature=1"], highest_reward=HIGHEST, max_new_tokens=MAX_TOKENS
    )


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def unsolved(answers: Sequence[Line]) -> list[Line]:
    """Return the first NUM_UNSOLVED problems that no answer solves."""
    return [one for one in answers if max(one["rewards"]) < HIGHEST][:NUM_UNSOLVED]


def blocks(answers: Sequence[Line]) -> Iterator[tuple[int, str, list[Line]]]:
    """Yield the number, the way and the problems of each block, in the order in which they are refined.

    The ways of a block begin with another one than those of the block before.
    """
    chosen, ways = unsolved(answers), list(WAYS)
    for number, first in enumerate(range(0, len(chosen), BLOCK)):
        turn = number % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            yield number, way, chosen[first : first + BLOCK]
