"""Test code that no answer, or every answer, could pass is refused by name."""

import pytest

from reward.judge import JudgeLostError
from reward.limits import Limits
from reward.problem import Problem, UncallableError


@pytest.mark.parametrize(
    "test",
    [
        "",
        "# nothing",
        "def check(candidate):\n    assert candidate(1) == 1\n",
        "import sys\nsys.exit(0)",
        "f(3)",
        "assert f(3) or True",
        "try:\n    assert f(3) == 4\nexcept Exception: pass",
        "def test():\n    assert f(3) == 4\nif __name__ == '__main__': test()",
    ],
)
def test_tests_that_pass_whatever_the_answer_is_are_refused(test: str) -> None:
    with pytest.raises(ValueError, match="problem 7: test_code 1 passes whatever the answer returns"):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test], "fn_name": "f"}, problem_id=7)


def test_a_useless_test_is_refused_beside_one_without_end() -> None:
    tests = ["while f(3): pass\nassert f(3) == 0", "x = 3"]
    with pytest.raises(ValueError, match="problem 7: test_code 1 passes whatever the answer returns"):
        Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7, limits=Limits(judge_s=1.0))


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("assert f([3], int) == 4", "type is no built-in type"),
        ("assert f(3, key=lambda x: x) == 4", "function is no built-in type"),
        ("assert f({1: [f(2), len]}) == 4", "builtin_function_or_method is no built-in type"),
        ("class Node: pass\nassert f((Node(),)) == 4", "Node is no built-in type"),
        ("node = Node(1)\nnode.left = Node(2)\nassert f(node) == 4", "an object of the answer's with attributes left"),
        ("try:\n    assert f(object) == 4\nexcept TypeError:\n    assert False", "type is no built-in type"),
    ],
)
def test_arguments_that_no_answer_can_be_handed_are_refused(test: str, what: str) -> None:
    with pytest.raises(UncallableError, match="problem 7: test_code 1 calls the answer with what cannot be") as error:
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test], "fn_name": "f"}, problem_id=7)
    assert f"({what})" in str(error.value)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(f(3)) == 4",
        "assert f([g(1), {g(2): (g(3),)}], {1: g(4)}.values(), x=g(5)) == 4",
        "assert f(map(g, [1, 2])) == 4",
        "assert f(x for x in g(1)) == 4",
        "assert f(ValueError(g(1)), range(3), b'x', 1j, iter([g(2)])) == 4",
        "from collections import namedtuple\nassert f(namedtuple('P', 'x')(g(1))) == 4",
    ],
)
def test_arguments_that_an_answer_may_have_made_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("assert f(3)(4) == 7", "calls what it returns"),
        ("for x in range(3):\n    g = f(x)\n    assert g(4) == 7", "calls what it returns"),
        ("s = f()\ns.push(1)\nassert s.pop() == 1", "takes push of what it returns"),
        ("assert f().solve(3) == 4", "takes solve of what it returns"),
        ("import asyncio\nassert asyncio.run(f(3)) == 4", "awaits what it returns"),
        ("import asyncio\nasync def main(): assert await f(3) == 4\nasyncio.run(main())", "awaits what it returns"),
    ],
)
def test_values_that_no_answer_can_return_are_refused(test: str, what: str) -> None:
    with pytest.raises(UncallableError, match=f"problem 7: test_code 1 {what}: only plain values come back"):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test], "fn_name": "f"}, problem_id=7)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(x=3).strip() == 'x'",
        "assert sorted(f(3)) == [1] and f(4).total() == 2",
        "assert str(f(3).limit_denominator(2)) == '1' or f(3).append(3)",
        "assert next(f(3)) == 3 and f(4).numerator == 3",
        "import numpy as np\nassert np.sum(f(3)) == 3\nassert np.sqrt(f(4)) == 2",
        "import numpy as np\nassert np.allclose(np.array(f(3)), [1, 2])",
        "x = f(3)\nx = x if isinstance(x, list) else x.tolist()\nassert x == [1]",
        "x = f(3)\nif not isinstance(x, list): x = x.tolist()\nassert x == [1]",
        "assert not hasattr(f(3), 'push') and f(3) == 4",
        "try:\n    f(3)(4)\nexcept TypeError:\n    assert f(3) == 4",
        "import copy, json\nassert copy.deepcopy(f(3)) == [1]\nassert json.dumps(f(4)) == '3'",
        "assert f(3).args == (1,)",
    ],
)
def test_values_that_some_answer_can_return_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


@pytest.mark.parametrize(
    ("test", "names"),
    [
        ("assert isclose(f(3), 4.0)", "isclose"),
        ("def check(candidate):\n    assert deepcopy(candidate(3)) == Counter('a')\ncheck(f)", "Counter, deepcopy"),
    ],
)
@pytest.mark.parametrize("fn_name", ["f", None])
def test_names_of_the_library_that_an_answer_could_define_are_refused(
    test: str, names: str, fn_name: str | None
) -> None:
    with pytest.raises(ValueError, match=f"problem 7: test_code 1 uses {names}, which it does not define"):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test], "fn_name": fn_name}, problem_id=7)


@pytest.mark.parametrize(
    ("test", "fn_name"),
    [
        ("assert sqrt(4) == 2", None),
        ("assert sqrt(4) == 2", "sqrt"),
        ("def check(candidate):\n    assert candidate(4) == 2\ncheck(sqrt)", None),
        ("def check(candidate):\n    assert candidate(4) == 2\ncheck(candidate)", "sqrt"),
        ("from math import isclose\nassert isclose(f(3), 4.0)", "f"),
        ("assert decode(encode('x')) == 'x'", "decode"),
    ],
)
def test_names_that_may_be_the_answers_are_accepted(test: str, fn_name: str | None) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": fn_name}, problem_id=7).num_tests == 1


@pytest.mark.parametrize("end", ["os._exit(0)", "os._exit(3)", "os.abort()", "os.kill(os.getpid(), 8)"])
def test_test_code_that_ends_its_process_is_refused(end: str) -> None:
    with pytest.raises(ValueError, match="problem 7: test_code 1 ends the process that runs it"):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", f"import os\n{end}"]}, problem_id=7)


def test_a_judge_lost_while_test_code_is_tried_names_the_problem() -> None:
    tests = {"test_code": ["import os\nassert f(3) == 4\nos.kill(os.getpid(), 9)"]}  # as if for want of memory
    with pytest.raises(JudgeLostError, match="problem 7: test_code could not be tried .*status -9"):
        Problem.from_input_output(tests, problem_id=7)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(3)",
        "assert not f(3)",
        "assert f(3) != 4",
        "assert f(3) is None",
        "assert f(3) is not None",
        "while f(3): pass\nassert f(3) == 4",  # it has no end with some values
        "assert abs(f(3) - 4.0) < 1e-6",
        "try:\n    f(-1)\n    assert False\nexcept ValueError: pass",
    ],
)
def test_tests_that_some_answer_fails_are_accepted(test: str) -> None:
    limits = Limits(judge_s=1.0)
    problem = Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7, limits=limits)
    assert problem.num_tests == 1
