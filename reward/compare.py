"""Comparison of outputs with expected outputs, for judges only: the code under test never sees expected outputs."""

import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from reward.sandbox.jail.values import from_text

# numpy.allclose's tolerances, which the APPS harness uses.
REL_TOLERANCE = 1e-5
ABS_TOLERANCE = 1e-8
_INTEGER = re.compile(r"[+-]?[0-9]+")
_PADDED = re.compile(r"[+-]?0[0-9]+")  # a text of digits, as in `0010`
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def stdout_matches(actual: str, expected: str) -> bool:
    """Compare standard output line by line, as APPS and CodeRL do.

    Trailing white space of a line, blank lines and the amount of white space between words do not count.
    A word expected as a float (`0.5`, `1e-3`) matches numbers within the tolerance; one expected as an integer
    matches the same number however written (`3.0`) but no neighbour of it, however large; others, among them `inf`,
    `nan` and digits after a zero (`0010`), match exactly.
    """
    actual_lines, expected_lines = _lines(actual), _lines(expected)
    return len(actual_lines) == len(expected_lines) and all(
        got == want or (len(got.split()) == len(want.split()) and all(map(_word_matches, got.split(), want.split())))
        for got, want in zip(actual_lines, expected_lines, strict=True)
    )


def returned_matches(result: bytes, accepted: tuple[Any, ...]) -> str:
    """Compare what a call returned with the JSON values accepted as right; returns "" or what is wrong."""
    try:
        outcome = from_text(result)
        if not isinstance(outcome, list) or len(outcome) != 2 or outcome[0] != "value":
            raise ValueError("no value")
        value = json.loads(json.dumps(outcome[1]), object_pairs_hook=_with_distinct_keys)
    except (ValueError, TypeError):
        return "the returned value is not plain"
    return "" if any(value_matches(value, expected) for expected in accepted) else "wrong answer"


def value_matches(actual: Any, expected: Any) -> bool:
    """Compare a returned JSON value with the expected one, by Python's `==` and a tolerance for expected floats.

    As in APPS `==` decides, so True matches 1. Infinities and nan match themselves alone.
    """
    if isinstance(expected, list) and isinstance(actual, list):
        return len(actual) == len(expected) and all(map(value_matches, actual, expected))
    if isinstance(expected, dict) and isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(value_matches(actual[key], expected[key]) for key in expected)
    if isinstance(expected, float) and isinstance(actual, (int, float)):
        return _close(actual, expected)
    return bool(actual == expected)


def _with_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):  # in JSON 1 and "1" are one key
        raise ValueError("two keys are one text in JSON")
    return items


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def _word_matches(actual: str, expected: str) -> bool:
    if actual == expected:
        return True
    got, want = _number(actual), _number(expected)
    if got is None or want is None or _PADDED.fullmatch(expected):  # words that are no numbers differ
        return False
    if _INTEGER.fullmatch(expected) or math.isinf(float(want)):  # exactly: of any length, and beyond the floats
        return got == want
    return _close(float(got), float(want))


def _number(word: str) -> Decimal | None:
    """Return the number that a word denotes, without rounding; None if it denotes no finite number."""
    if not _NUMBER.fullmatch(word):
        return None
    try:
        return Decimal(word)
    except InvalidOperation:  # an exponent of over 18 digits
        return None


def _close(actual: float, expected: float) -> bool:
    if math.isnan(expected):
        return isinstance(actual, float) and math.isnan(actual)
    try:
        return math.isclose(actual, expected, rel_tol=REL_TOLERANCE, abs_tol=ABS_TOLERANCE)
    except OverflowError:  # an integer too large for a float is not close to any
        return False
