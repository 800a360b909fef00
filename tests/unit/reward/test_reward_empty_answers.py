"""Test code that passes answers which return what is empty is refused, also beside tests that expect an error."""

import re

import pytest

from reward.problem import Problem

RAISES = "import pytest\nwith pytest.raises(ValueError): f([])"
ZIP = "for a, b in zip(f(3), [1, 2]):\n    assert a == b"
EACH = "    for a, b in zip(p, q): assert a == b"
SAME_LENGTH = f"    r = f(m)\n    assert len(r) == len(e)\n    for p, q in zip(r, e):\n    {EACH}"
ROWS = "r = f([[1, 2], [3, 4]])\nassert len(r) == 2\nfor p, q in zip(r, [[1, 3], [2, 4]]):\n"


@pytest.mark.parametrize(
    ("tests", "what"),
    [
        ([ZIP, RAISES], "an empty list"),
        (["import numpy as np\nassert np.all(np.array(f(3)) == 9)", RAISES, RAISES], "an empty list"),
        (["r = f(3)\nassert hasattr(r, '__next__')\nfor a, b in zip(r, [0, 1]): assert a == b"], "an empty iterator"),
        (["import types\nr = f(3)\nassert type(r) is types.GeneratorType\nfor x in r: assert x"], "an empty iterator"),
        (["import collections\nr = f(3)\nassert type(r) is collections.deque\nassert 0 not in r"], "an empty deque"),
        (["r = f(3)\nassert isinstance(r, frozenset)\nassert all(x in [2] for x in r)"], "an empty frozenset"),
        (["r = f(3)\nassert isinstance(r, bytes)\nassert all(x == 2 for x in r)"], "empty bytes"),
        ([f"{ROWS}    for a, b in zip(p, q): assert abs(a - b) < 1e-6"], "[] for each item of its first argument"),
        (
            [f"for m, e in (([(1, 2)], [[1], [2]]), ([(1,)], [[1]])):\n{SAME_LENGTH}"],
            "[] for each item of its first argument's first",
        ),
        ([f"for m, e in ((1, [[1]]), (2, [[1, 2], [3, 4]])):\n{SAME_LENGTH}"], "as many [] as its first argument says"),
        (
            [f"r = f(3, 2)\nassert len(r) == 2\nfor p, q in zip(r, [[1], [2]]):\n{EACH}"],
            "as many [] as its second argument says",
        ),
        (["p, q, s = f(8)\nassert all(x < 3 for x in p) and 4 not in q and 4 not in s"], "three []"),
    ],
)  # fmt: skip
def test_tests_that_all_pass_what_is_empty_are_refused(tests: list[str], what: str) -> None:
    with pytest.raises(ValueError, match=f"passes, as all tests do, an answer that returns {re.escape(what)}"):
        Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7)
    tests = [*tests, "assert f([1]) == 40"]
    assert Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7).num_tests == len(tests)


def test_tests_that_expect_errors_alone_are_accepted() -> None:
    assert Problem.from_input_output({"test_code": [RAISES, RAISES], "fn_name": "f"}, problem_id=7).num_tests == 2
