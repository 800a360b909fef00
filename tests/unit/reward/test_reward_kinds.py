import json

import pytest

from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem


def score(tests: list[str], code: str, fn_name: str | None = None, **limits: float) -> Score:
    problem = Problem.from_input_output(json.dumps({"test_code": tests, "fn_name": fn_name}), problem_id=1)
    return score_response(problem, f"```python\n{code}\n```", Limits(**limits))


CHECK = """
def check(candidate):
    assert candidate([3, 1]) == [1, 3]
    assert candidate([]) == []
check(candidate)
"""


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def f(x): return sorted(x)", "pass"),
        ("def f(x): return x", "fail"),
        ("def f(x): return tuple(sorted(x))", "fail"),  # a list is asked for: types are kept
        ("def f(x): return 1 / 0", "runtime_error"),
        ("def f(x):\n    while True: pass", "time_out"),
        ("def f(x): return bytearray(1 << 40)", "memory_limit"),
        ("def f(x): raise AssertionError", "runtime_error"),
        ("def g(x): return x", "runtime_error"),
        ("def f(x) return x", "compile_error"),
        ("def f(x): return object()", "fail"),
        ("class Yes(list):\n    def __eq__(self, other): return True\ndef f(x): return Yes()", "fail"),
        ("import os\ndef f(x): os._exit(0)", "runtime_error"),
        ("def check(candidate): pass\ndef f(x): return 0", "fail"),
        ("import builtins\nbuiltins.AssertionError = KeyError\ndef f(x): return 0", "fail"),
    ],
)
def test_humaneval_style(code: str, outcome: str) -> None:
    assert score([CHECK], code, "f", test_s=1.0).outcome == outcome


def test_mbpp_style_grades_each_assertion() -> None:
    tests = [
        "assert half(4) == 2",
        "assert half(5) == 2.5",
        "assert half((1,)) == {3: (4,)}",
        "assert half(half(8)) == 2",
    ]
    assert score(tests, "def half(x):\n    return x / 2 if x != (1,) else {3: (4,)}").outcome == "pass"
    assert score(tests, "def half(x):\n    return x // 2 if x != (1,) else 0").score == pytest.approx(-0.3 + 1.3 / 2)


def test_answer_does_not_change_what_assertions_mean() -> None:
    forged = "def set(x): return 1\ndef f(x): return 0\ndef all(x): return True"
    assert score(["assert set(f(1)) == set([7])"], forged).outcome == "fail"
    assert score(["assert sum(10, 15) == 6"], "def sum(a, b): return 6").outcome == "pass"  # what the task asks for
    assert score(["assert size(1) == sys.maxsize"], "import sys\ndef size(x): return sys.maxsize").outcome == "pass"


def test_calls_of_one_test_share_its_time() -> None:
    tests = ["for _ in range(50): assert f(1) == 1"]
    slow = "import time\ndef f(x):\n    time.sleep(0.2)\n    return x"
    assert score(tests, slow, test_s=0.7).outcome == "time_out"


@pytest.mark.parametrize(
    ("tests", "message"),
    [([], "no tests"), (["assert ("], "test_code 0 is no Python"), ([1], "test_code 0 is int"), ("x", "no list")],
)
def test_bad_test_code_is_named(tests: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: .*{message}"):
        Problem.from_input_output({"test_code": tests}, problem_id=7)
