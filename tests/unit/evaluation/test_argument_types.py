from typing import Any

import pytest

from recipe.evaluation.argument_types import example_arguments, restore_types


def restored(assertions: str, arguments: list[Any]) -> str:
    return repr(restore_types(arguments, example_arguments(assertions, "f")))  # repr: 1 is 1+0j by ==


@pytest.mark.parametrize(
    ("assertions", "arguments", "expected"),
    [
        ("assert f([1], (2,)) == 3", [[1, 2], [3, 4]], "[[1, 2], (3, 4)]"),
        ("assert f([(1, 2)]) == 3", [[[3, 4], [5]]], "[[(3, 4), (5,)]]"),
        ("assert f(([1],)) == 3", [[[3, 4], [5]]], "[([3, 4], [5])]"),
        ("assert f({1}) == 3", [[3]], "[{3}]"),
        ("assert f({'a': (1, 2)}, 3) == 3", [{"b": [4]}, 5], "[{'b': (4,)}, 5]"),
        ("assert f((1, (2, 3), 4)) == 3", [[[1, [2, [3]]], 4]], "[((1, (2, (3,))), 4)]"),  # deeper than the example
        ("assert f((1,), 2) == 3", [[], 2], "[(), 2]"),
        ("assert f(1j) == 3", ["(2-3j)"], "[(2-3j)]"),
        ("assert f('1j') == 3", ["(2-3j)"], "['(2-3j)']"),
        ("assert f(1) == 3", ["text"], "['text']"),
        ("assert f((1,)) == 3\nassert f([1]) == 3", [[1]], "[[1]]"),  # the examples differ: as in JSON
        ("assert f(2 * 2)\nassert not f((1,))", [[1]], "[(1,)]"),
        ("import math\nassert math.isclose(f((1,)), 2)", [[1]], "[(1,)]"),
        ("assert g((1,)) == 3", [[1]], "[[1]]"),
        ("", [[1]], "[[1]]"),
    ],
)
def test_types_as_in_the_assertions(assertions: str, arguments: list[Any], expected: str) -> None:
    assert restored(assertions, arguments) == expected
