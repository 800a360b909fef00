"""Test code that fails before it calls the answer is refused by name; no answer passes it."""

import pytest

from reward.problem import Problem


@pytest.mark.parametrize(
    ("test", "cause"),
    [
        ("from collections import Iterable\nassert f(3) == 9", "ImportError: cannot import name 'Iterable'"),
        ("from datetime.datetime import *\nassert f(3) == 9", "ModuleNotFoundError: No module named 'datetime.date"),
        ("from numpy.nope import *\nassert f(3) == 9", "ModuleNotFoundError: No module named 'numpy.nope'"),
        ("import numpy as np\nassert f(np.float(3)) == 9", "AttributeError: module 'numpy' has no attribute"),
        ("import datetime\nassert f(datetime.now()) == 9", "AttributeError: module 'datetime' has no attribute"),
        ("d = {}\nif f: assert d.has_key(1) or f(3) == 9", "AttributeError: 'dict' object"),
        ("assert 1 == 2\nassert f(3) == 9", r"AssertionError\)"),
        ("import sys\nsys.exit(1)\nassert f(3) == 9", "SystemExit: 1"),
        ("assert f(3) == 9\nreturn True", "'return' outside function"),
        ("assert await f(3) == 9", "'await' outside function"),
        ("x = 1\nfrom __future__ import annotations\nassert f(3) == 9", "from __future__ imports must occur"),
        ("def t():\n    nonlocal z\n    assert f(3) == 9\nt()", "no binding for nonlocal 'z'"),
    ],
)
def test_tests_that_fail_before_they_call_the_answer_are_refused(test: str, cause: str) -> None:
    with pytest.raises(ValueError, match=rf"problem 7: test_code 1 fails before it calls the answer \({cause}"):
        Problem.from_input_output({"test_code": ["assert f(3) == 9", test], "fn_name": "f"}, problem_id=7)


@pytest.mark.parametrize("name", ["xrange", "unicode", "raw_input"])
def test_names_of_an_older_python_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: test_code 0 uses {name}, which it does not define"):
        Problem.from_input_output({"test_code": [f"assert f({name}(3)) == 9"], "fn_name": "f"}, problem_id=7)


@pytest.mark.parametrize(
    "test",
    [
        "try: from collections import Iterable\nexcept ImportError: pass\nassert f(3) == 9",
        "import types\nassert isinstance(f, types.FunctionType)\nassert f(3) == 9",
        "r = f(3)\nassert [9][r - 9] == 9",
        "from math import *\nassert f(3) == floor(9.5)",
        "def t():\n    assert f(3) == 9\n    return\nt()",
    ],
)
def test_tests_that_fail_behind_a_call_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1
