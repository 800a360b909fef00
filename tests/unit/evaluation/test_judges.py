import math
from typing import Any

import pytest

from recipe.evaluation.judges import TaskJudge


def is_right(value: Any, expected: Any, atol: float = 0.0, task: str = "Mbpp/11", arguments: Any = ()) -> bool:
    return TaskJudge(task_id=task, expected=expected, arguments=list(arguments), atol=atol)(value)


@pytest.mark.parametrize(
    ("value", "expected", "atol", "right"),
    [
        ((1, 2), (1, 2), 0, True),
        ([1, 2], (1, 2), 0, False),
        ((1, 2), [1, 2], 0, False),
        ({(1,): [2]}, {(1,): [2]}, 0, True),
        ({(1,): [2]}, {(1,): (2,)}, 0, False),
        (1, True, 0, True),  # by ==, as in evalplus
        (3.0, 3, 0, True),
        ("3", 3, 0, False),
        (None, 0, 0, False),
        (0.5 + 9e-7, 0.5, 0, True),  # a float is expected: 1e-6
        (0.5 + 2e-6, 0.5, 0, False),
        (1e9 + 50.0, 1e9, 0, True),  # and 1e-7 of its size
        (1e9 + 200.0, 1e9, 0, False),
        ([0.5 + 9e-7, 1.0], [0.5, 1.0], 0, True),
        ((0.5 + 9e-7, 1.0), [0.5, 1.0], 0, False),
        ([0.5], [0.5, 0.5], 0, False),
        ([0.5 + 9e-7, 1], [0.5, 1], 0, False),  # not all floats: exact, unless the task names a tolerance
        ([0.5 + 9e-7, 1], [0.5, 1], 1e-6, True),
        ([[0.5005], (1,)], [[0.5], (1,)], 1e-3, True),
        ([[0.5005], [1]], [[0.5], (1,)], 1e-3, False),
        ("a", "b", 1e-3, False),
        (math.inf, math.inf, 0, True),
        (-math.inf, math.inf, 1e-3, False),
        (10**400, 1.0, 0, False),
        (1 + 1e-7j, 1 + 0j, 1e-6, True),
    ],
)
def test_equality_and_tolerance(value: Any, expected: Any, atol: float, right: bool) -> None:
    assert is_right(value, expected, atol) is right


@pytest.mark.parametrize(
    ("value", "right"),
    [(-2.0, True), (-2.00002, True), (-2.1, False), (math.nan, False), ("x", False), (None, False), (-2 + 0j, False)],
)
def test_any_root_will_do(value: Any, right: bool) -> None:
    assert is_right(value, 7.0, 1e-4, "HumanEval/32", [[4, 2]]) is right  # 4 + 2 x


def test_either_root() -> None:
    assert is_right(1.0, 2.0, 1e-4, "HumanEval/32", [[2, -3, 1]])
    assert is_right(2.0, 1.0, 1e-4, "HumanEval/32", [[2, -3, 1]])
    assert not is_right(1e308, 1.0, 1e-4, "HumanEval/32", [[2, -3, 1]])  # overflows


def test_roots_are_judged_with_the_rounding_of_a_plain_sum() -> None:
    terms = [1e16, 1.0, -1e16]  # before Python 3.12 the 1 is lost, which makes x = 1 a root
    assert is_right(1.0, 1.0, 1e-4, "HumanEval/32", [terms]) is (sum(terms) == 0)


def test_collections_of_elements() -> None:
    assert is_right([3, 1, 3], (1, 3), task="Mbpp/2")
    assert not is_right([3, 1], (1, 3), task="Mbpp/3")
    assert not is_right([3], (1, 3), task="Mbpp/2")
    assert not is_right(None, (1, 3), task="Mbpp/2")
    assert not is_right([[1], [3]], (1, 3), task="Mbpp/2")


@pytest.mark.parametrize(("value", "right"), [(0, True), (2, True), (1, False), (None, False)])
def test_digits_lined_up_either_way(value: Any, right: bool) -> None:
    # 12 and 112: 1-1, 2-1 and no digit, which the reference sums up to 0 + 1; 012 and 112 differ by 1 in one place.
    assert is_right(value, 0, task="Mbpp/558", arguments=[1, 11]) is (value in (0, 1))
    assert is_right(value, 0, task="Mbpp/558", arguments=[1, 21]) is right  # 01 and 21


@pytest.mark.parametrize(("value", "right"), [(33, True), (35, True), (34, False), ("33", False)])
def test_two_heights_of_a_pyramid(value: Any, right: bool) -> None:
    # Base 3, height 4: 9 + 2 * 3 * 4 by the side's height; 9 + 6 * sqrt(1.5 ** 2 + 16) = 34.6 by the top's.
    assert is_right(value, 33, task="Mbpp/581", arguments=[3, 4]) is right
