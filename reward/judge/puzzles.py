"""reasoning-gym's own scorers, asked in a confined child of a judge: some of them evaluate what they are given."""

import functools
import json
import re
from typing import Any

from reward.judge.no_code import forbid_code

_OPEN, _CLOSE = "<answer>", "</answer>"


def load(ground_truth: str) -> None:
    """Import reasoning-gym and make the task's scorer."""
    puzzle = json.loads(ground_truth)
    _dataset(puzzle["task"], json.dumps(puzzle["config"]))
    forbid_code("reasoning_gym", "sympy.parsing")


def grade_puzzle(ground_truth: str, response: str) -> tuple[str, float, str]:
    """Return the outcome (pass, fail), the scorer's points and the text scored: in the last answer tags, else all."""
    puzzle = json.loads(ground_truth)
    end = response.rfind(_CLOSE)
    start = response.rfind(_OPEN, 0, max(end, 0))
    found = (response[start + len(_OPEN) : end] if start >= 0 else response).strip()
    if puzzle["task"] == "countdown" and re.search("[A-Za-z]", found):  # to the scorer x - x is 0, and x / x is 1
        return "fail", 0.0, found
    points = float(_dataset(puzzle["task"], json.dumps(puzzle["config"])).score_answer(found, puzzle["entry"]))
    points = 0.0 if is_for_a_part(points, found, str(puzzle["entry"]["answer"])) else min(max(points, 0.0), 1.0)
    return "pass" if points == 1.0 else "fail", points, found


def is_for_a_part(points: float, found: str, answer: str) -> bool:
    """Return whether the points are for the right answer within another word or number, as for 500 in 1500 or 3 in -3.

    reasoning-gym's common scorer gives len(answer) / len(found) to whatever contains the answer.
    """
    is_for_length = 0 < points < 1 and answer in found and points == len(answer) / len(found)
    return is_for_length and not re.search(rf"(?<![\w.-]){re.escape(answer)}(?![.,]?\w)", found)


@functools.lru_cache
def _dataset(task: str, config: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, **json.loads(config))
