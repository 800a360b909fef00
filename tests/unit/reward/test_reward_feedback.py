"""What an answer's author is told: how it failed, and nothing that a test expects."""

import pytest

from reward.apps import score_response
from reward.feedback import MAX_CHARACTERS
from reward.problem import Problem

TESTS = {"inputs": ["1\n2\n", "3\n4\n", "0\n0\n"], "outputs": ["3000\n", "7000\n", "0\n"]}
ADD = {"inputs": [[1, 2], [3, 4]], "outputs": [3000, 7000], "fn_name": "add"}
SHOWN = "\nTest 2 fails on the example with this input:\n"


def feedback(tests: dict[str, object], code: str) -> str:
    return score_response(Problem.from_input_output(tests, problem_id="p"), f"```python\n{code}\n```").feedback


@pytest.mark.parametrize(
    ("tests", "code", "said"),
    [
        (TESTS, "print(0)", "It runs, but fails 2 of 3 tests, test 1 first."),
        (TESTS, "print(1000 * (int(input()) + int(input())))", ""),
        (TESTS, "print(int(", "It does not compile: SyntaxError: '(' was never closed, in this line: print(int("),
        (
            TESTS,
            "print(3000)\n1 / (int(input()) - 3)",
            "Test 2 of 3 ends in an error: ZeroDivisionError: division by zero",
        ),
        (TESTS, "while True: print()", "Test 1 of 3 gives too much output: more than 1048576 bytes of output"),
        (ADD, "def add(a, b): return a", "It runs, but fails 2 of 2 tests, test 1 first."),
        (ADD, "x = 1", "Test 1 of 2 ends in an error: NameError: the code does not define add"),
        (
            {"test_code": ["assert add(1, 2) == 3000"]},
            "def add(a, b): return a",
            "It runs, but fails 1 of 1 tests, test 1",
        ),
    ],
)
def test_each_kind_of_failure(tests: dict[str, object], code: str, said: str) -> None:
    found = feedback(tests, code)
    assert found.startswith(said) and bool(found) == bool(said)
    assert "7000" not in found and "assert" not in found and "example" not in found


def test_an_example_that_fails_is_shown_by_its_input_alone() -> None:
    assert feedback({**TESTS, "examples": [1]}, "print(0)").endswith(f"{SHOWN}3\n4")
    assert feedback({**ADD, "examples": [1]}, "def add(a, b): return a").endswith(f"{SHOWN}[3, 4]")
    assert "example" not in feedback({**TESTS, "examples": [2]}, "print(0)"), "that one passes"
    assert "example" not in feedback({**TESTS, "examples": [1]}, "print(1 / 0)"), "it was not run"
    assert "example" not in feedback({"test_code": ["assert f() == 3"], "examples": [0]}, "def f(): return 1")
    long = {"inputs": ["7" * 1000], "outputs": ["1"], "examples": [0]}
    assert feedback(long, "print(0)").endswith("\n" + "7" * MAX_CHARACTERS)


def test_an_answer_without_code() -> None:
    problem = Problem.from_input_output(ADD, problem_id="p")
    assert score_response(problem, "I do not know.").feedback == "There is no program in it."
