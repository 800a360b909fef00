"""Feedback in words on how an answer failed, for the model that wrote it; it never holds an expected output."""

import json
import re
from collections.abc import Sequence

from reward.problem import Problem

MAX_CHARACTERS = 200
"""The limit on the characters shown from an example's input or a program's line."""
_PLACE = re.compile(r"\(solution\.py, line ([0-9]{1,9})\)$")  # as `sandbox.execution.last_words` says it
_WORDS = {
    "runtime_error": "ends in an error",
    "time_out": "does not end in time",
    "memory_limit": "takes too much memory",
    "output_limit": "gives too much output",
}


def feedback(problem: Problem, outcome: str, passed: Sequence[bool], said: str, code: str) -> str:
    """Return how an answer failed, in words; an empty text if it passed.

    `passed` has one entry for each test that ran. `said` is the last line of error output of a program that did not
    compile or ended early, or the reason why an answer cannot be read. It is never the message of a test, which may
    hold the expected output.
    """
    because = f": {_with_line(said, code)}" if said else "."
    if outcome == "compile_error" and not passed:
        return f"It cannot be read{because}" if said else "There is no program in it."
    if outcome == "compile_error":
        return f"It does not compile{because}"
    if outcome in _WORDS:
        text = f"Test {len(passed)} of {problem.num_tests} {_WORDS[outcome]}{because}"
    elif outcome == "fail":
        num_wrong, first = passed.count(False), passed.index(False) + 1
        text = f"It runs, but fails {num_wrong} of {problem.num_tests} tests, test {first} first."
    else:
        return ""
    failing = next((index for index in problem.examples if index < len(passed) and not passed[index]), None)
    if failing is None:
        return text
    given = problem.inputs[failing]
    shown = (given if isinstance(given, str) else json.dumps(given)).rstrip()
    return f"{text}\nTest {failing + 1} fails on the example with this input:\n{shown[:MAX_CHARACTERS]}"


def _with_line(said: str, code: str) -> str:
    """Replace the number of a line of the program by the line itself, since a model cannot count lines reliably."""
    place, lines = _PLACE.search(said), code.split("\n")
    if place is None or not 0 < int(place.group(1)) <= len(lines):
        return said
    line = lines[int(place.group(1)) - 1].strip()
    return f"{said[: place.start()].rstrip()}, in this line: {line[:MAX_CHARACTERS]}"
