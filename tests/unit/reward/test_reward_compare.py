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
        ("\n3", "3", False),
        ("0.333333", "0.3333333333", True),
        ("0.3334", "0.3333333333", False),
        ("Case 1: 0.50000001", "Case 1: 0.5", True),
        ("3.0", "3", True),
        ("1000000008", "1000000007", False),  # integers have no tolerance
        ("9007199254740993", "9007199254740992", False),
        ("9007199254740993.0", "9007199254740992", False),
        ("yes", "YES", False),
        ("", "", True),
        ("", "0", False),
        ("nan", "0.5", False),
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
    ],
)
def test_values(actual: Any, expected: Any, is_right: bool) -> None:
    assert value_matches(actual, expected) is is_right
