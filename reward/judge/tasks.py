"""What a judge can be asked; the arguments that answers and programs wrote are untrusted."""

import functools
from collections.abc import Callable
from typing import Any

from reward.compare import stdout_matches, value_matches
from reward.extract import extract_code
from reward.judge import math_answers, puzzles
from reward.judge.assertions import load_modules, modules_used, names_of_the_answer, run_test_code
from reward.judge.faults import faults_of_tests, faults_together
from reward.judge.protocol import Call
from reward.sandbox.jail.values import from_text

NOT_PLAIN = "the returned value is not plain"


def tasks(call: Call) -> dict[str, Callable[..., Any]]:
    """By name; `call` runs a function of the answer in the sandbox."""
    return {
        "extract_code": extract_code,
        "extract_tested": extract_tested,
        "stdout_matches": stdout_matches,
        "returned_matches": returned_matches,
        "returned_satisfies": returned_satisfies,
        "run_test_code": functools.partial(run_test_code, call),
        "faults_of_tests": faults_of_tests,
        "grade_text": math_answers.grade_text,
        "grade_math": _graded(math_answers.grade_math),
        "grade_puzzle": _graded(puzzles.grade_puzzle),
        "faults_together": faults_together,
    }


LOADERS: dict[str, Callable[..., bool]] = {
    "run_test_code": lambda tests, *_: load_modules(tests),
    "faults_of_tests": lambda tests, *_: load_modules(tests),
    "faults_together": lambda tests, *_: load_modules(tests),
    "grade_math": lambda *_: math_answers.load(),
    "grade_puzzle": lambda ground_truth, *_: puzzles.load(ground_truth),
}
"""Of tasks that a confined fork does: what loads before the fork, from the task's arguments, and whether it did."""
GRADES = ("grade_math", "grade_puzzle")
"""Tasks that end as unreadable, where their fork ends before them."""


def extract_tested(response: str, test_code: str) -> str | None:
    """Find the code of an answer whose name only the test code says."""
    return extract_code(response, *set(names_of_the_answer(test_code, None)) - modules_used(test_code))


def _graded(grade: Callable[..., tuple[str, float, str]]) -> Callable[..., tuple[str, float, str]]:
    def grade_whatever(*arguments: str) -> tuple[str, float, str]:
        try:
            return grade(*arguments)
        except Exception as error:  # of libraries, on untrusted text: memory, depth, and whatever else
            return "unreadable", 0.0, type(error).__name__

    return grade_whatever


def returned_matches(result: bytes, accepted: tuple[Any, ...]) -> str:
    """Compare what a call returned with the JSON values accepted as right; returns "" or what is wrong."""
    try:
        value = as_json(_returned(result))
    except ValueError:
        return NOT_PLAIN
    return "" if any(value_matches(value, expected) for expected in accepted) else "wrong answer"


def returned_satisfies(result: bytes, is_right: Callable[[Any], bool]) -> str:
    """Ask the test's own judge about what a call returned; returns as above."""
    try:
        value = _returned(result)
    except ValueError:
        return NOT_PLAIN
    return "" if is_right(value) else "wrong answer"


def as_json(value: Any) -> Any:
    """The value as JSON has it: tuples as lists, keys as text.

    Raises:
        ValueError: it is, or holds, a value that JSON does not have.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        items = {_key(key): as_json(item) for key, item in value.items()}
        if len(items) < len(value):
            raise ValueError("two keys are one text in JSON")
        return items
    raise ValueError(f"JSON has no {type(value).__name__}")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, (int, float)):
        return repr(key)
    raise ValueError(f"JSON has no key of type {type(key).__name__}")


def _returned(result: bytes) -> Any:
    """The value in what a call wrote.

    Raises:
        ValueError: it wrote something else, or what it returned cannot be told as text.
    """
    outcome = from_text(result)
    if not isinstance(outcome, list) or len(outcome) != 2 or outcome[0] != "value":
        raise ValueError("no value")
    return outcome[1]
