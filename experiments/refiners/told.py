"""The reward of programs with feedback that also gives the input and expected output of the first failing test.

It is used by one variant only. Feedback in training never holds an expected output: a refiner could write it down.
"""

import json
import re
from typing import Any

from reward import verl_reward

FIRST = re.compile(r"(?:Test (\d+) of|tests, test (\d+) first)")


async def compute_score(data_source: str, solution_str: str, ground_truth: str, **more: Any) -> dict[str, Any]:
    """Score as ``reward.verl_reward`` does, with more feedback."""
    said = await verl_reward.compute_score(data_source, solution_str, ground_truth, **more)
    if "fn_name" not in json.loads(ground_truth):
        raise ValueError("no test of a function could be told: the answer is left out")
    if found := FIRST.search(str(said["feedback"])):
        tests, number = json.loads(ground_truth), int(found[1] or found[2]) - 1
        given = ", ".join(map(repr, tests["inputs"][number]))
        said["feedback"] = f"{said['feedback']} {tests['fn_name']}({given}) must be {tests['outputs'][number]!r}."
    return said
