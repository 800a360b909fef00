"""Test code that passes an answer which solves nothing is refused, by the name of its problem."""

import pytest

from reward.judge import JudgeLostError
from reward.limits import Limits
from reward.problem import Problem


def problem_of(*tests: str, fn_name: str | None = "f", limits: Limits | None = None) -> Problem:
    return Problem.from_input_output({"test_code": list(tests), "fn_name": fn_name}, problem_id=7, limits=limits)


@pytest.mark.parametrize(
    ("tests", "returned"),
    [
        ([""], "None"),
        (["f(3)"], "None"),
        (["import sys\nsys.exit(0)"], "None"),
        (["try:\n    assert f(3) == 4\nexcept Exception: pass"], "None"),
        (["assert (len(f([1, 2])) == 2, 'wrong length')"], "an empty text"),
        (["assert str(f(3)) == ''", "assert len(f(4)) == 0"], "an empty text"),
        (["assert f(3) < 1", "assert f(4) == False"], "0"),
        (["for a, b in zip(f(3), [1, 2]):\n    assert a == b"], "an empty text"),
        (["import numpy as np\nassert np.allclose(f(3), 0.5)"], "an empty list"),
        (["assert f({1: 2, 0: 1}) == {0: 1, 1: 2}"], "its first argument"),
        (["a = [1, 2]\nassert f(x=a) == sorted(a)"], "its first argument"),
        (["assert isclose(f(3), 4)"], "its first argument"),  # a name that an answer could define
    ],
)
def test_test_code_that_passes_what_solves_nothing_is_refused(tests: list[str], returned: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: .* returns {returned} whatever"):
        problem_of(*tests, fn_name=None if "isclose" in tests[0] else "f")
    assert problem_of(*tests, "assert f([1]) == 40").num_tests == len(tests) + 1


@pytest.mark.parametrize(
    "test",
    [
        "assert f(3)[0] == 4",
        "assert f(3) != 3 and f(3) is not None and f(3)",
        "while f(3): pass\nassert f(3) == 4",  # it has no end with some values
        "import pytest\nwith pytest.raises(ValueError): f(-1)",
        "assert f(encode('x')) == 'x'",  # other functions of an answer are none of the useless one's
        "x = [3, 1]\nf(x)\nassert x == [1, 3]",
    ],
)
def test_test_code_that_they_fail_is_accepted(test: str) -> None:
    assert problem_of(test, limits=Limits(judge_s=2.0)).num_tests == 1


@pytest.mark.parametrize(
    ("tests", "message"),
    [([], "no tests"), (["assert ("], "test_code 0 is no Python"), ([1], "test_code 0 is int"), ("x", "no list")],
)
def test_bad_test_code_is_named(tests: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: .*{message}"):
        Problem.from_input_output({"test_code": tests}, problem_id=7)


def test_a_judge_lost_while_test_code_is_tried_names_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object, **__: object) -> None:
        raise JudgeLostError("a judge ended with status -9")

    monkeypatch.setattr("reward.problem.ask", lose)
    with pytest.raises(JudgeLostError, match="problem 7: test_code could not be tried .*status -9"):
        problem_of("assert f('lost') == 4")
