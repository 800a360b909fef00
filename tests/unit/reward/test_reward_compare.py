import math
import random
from typing import Any

import pytest

from reward.compare import stdout_matches, value_matches


@pytest.mark.parametrize(
    ("actual", "expected", "is_right"),
    [
        ("3\n", "3", True),
        ("3  \n\n\n", "3\n", True),
        ("1  2\n", "1 2\n", True),
        ("1 2", "1\n2", False),
        ("\n3", "3", True),
        ("3", "\n3", True),
        ("6\n7\n", "6\n \n7", True),
        ("0.333333", "0.3333333333", True),
        ("0.3334", "0.3333333333", False),
        ("Case 1: 0.50000001", "Case 1: 0.5", True),
        ("3.0", "3", True),
        ("1000000008", "1000000007", False),  # integers have no tolerance
        ("9007199254740993", "9007199254740992", False),
        ("yes", "YES", False),
        ("", "", True),
        ("", "0", False),
        ("nan", "0.5", False),
        ("inf", "inf", True),
        ("-nan", "nan", False),
        ("inf", "1e999", False),
        ("10e998", "1e999", True),
        ("1e18", "1000000000000000000", True),
        ("3.0000000000000000001", "3", False),
        ("+7", "007", False),
        ("1e9999999999999999999999", "1", False),
        ("1e-9999999999999999999999", "0.0", False),
    ],
)
def test_standard_output(actual: str, expected: str, is_right: bool) -> None:
    assert stdout_matches(actual, expected) is is_right


@pytest.mark.parametrize(
    ("actual", "expected", "is_right"),
    [
        (9, 9, True),
        (9, "9", False),
        (True, 1, True),  # Python's ==, as in APPS
        ([1, [2.0000001]], [1, [2.0]], True),
        ([1, 2], [1, 2, 3], False),
        (0.1 + 0.2, 0.3, True),
        (3, 3.0, True),
        (1000000008.0, 1000000007, False),
        (10**400, 1.5, False),
        ({"a": 1.0000001}, {"a": 1.0}, True),
        ({"a": 1}, {"b": 1}, False),
        (None, None, True),
        (None, 0, False),
        (math.inf, math.inf, True),
        (10**400, math.inf, False),
        (math.nan, math.nan, True),
        (1.0, math.nan, False),
    ],
)
def test_values(actual: Any, expected: Any, is_right: bool) -> None:
    assert value_matches(actual, expected) is is_right


def test_numbers_of_any_length_are_compared_exactly() -> None:
    digits = "".join(random.Random(1).choices("123456789", k=6000))
    neighbour = digits[:-1] + ("2" if digits[-1] == "1" else "1")
    for wrong in ("inf", "1e999", "9" * 6000, neighbour, digits[:4300], digits + "0"):
        assert not stdout_matches(f"1 {wrong}", f"1 {digits}"), wrong
    assert stdout_matches(f"1 0{digits}.0", f"1 {digits}")
    assert value_matches(10**5000, 10**5000) and not value_matches(10**5000 + 1, 10**5000)


@pytest.mark.parametrize("expected", ["0000", "0010", "-07", "3 005551234"])
def test_digits_behind_a_zero_are_text(expected: str) -> None:
    assert stdout_matches(f"{expected}\n", expected)
    words = expected.split()
    assert not stdout_matches(" ".join([*words[:-1], str(int(words[-1]))]), expected)
    assert stdout_matches("00", "0") and stdout_matches("07", "7") and stdout_matches("0.5", "00.5")
