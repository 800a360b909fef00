"""Test code that no answer, or every answer, could pass is refused by name."""

import time

import pytest

from reward.judge import Judge, JudgeLostError
from reward.limits import Limits
from reward.problem import Problem, UncallableError


@pytest.mark.parametrize("check", ["f(n) == 4", "isinstance(f(n), int)"])
def test_slow_test_code_is_not_tried_again_and_again(check: str) -> None:
    test = f"n = 0\nfor i in range(15_000_000): n += i\nassert {check}"
    judge = Judge()
    result = ("ok", b'["value", 4]', 0.0)
    run = judge.ask("run_test_code", test, "f", limits=Limits(), on_call=lambda *_: result)
    assert run.value == ["passed", ""]
    assert judge.ask("faults_of_tests", [test], "f", limits=Limits()).seconds < 3 * run.seconds


def test_a_trial_without_end_takes_little_time() -> None:
    test = "n = 6\nwhile n != 1: n = f(n)\nassert n == 1"
    assert Judge().ask("faults_of_tests", [test], "f", limits=Limits()).seconds < 6


def test_a_useless_test_is_refused_beside_one_without_end() -> None:
    tests = ["while f(3): pass\nassert f(3) == 0", "x = 3"]
    with pytest.raises(ValueError, match="problem 7: test_code 1 passes whatever the answer returns"):
        Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7, limits=Limits(judge_s=1.0))


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("assert f([3], int) == 4", "type is no built-in type"),
        ("assert f(3, key=lambda x: x) == 4", "function is no built-in type"),
        ("assert f(g) == 4", "function is no built-in type"),
        ("class T:\n    g = f\nassert T().g(3) == 4", "T is no built-in type"),
        ("assert f({1: [f(2), len]}) == 4", "builtin_function_or_method is no built-in type"),
        ("class Node: pass\nassert f((Node(),)) == 4", "Node is no built-in type"),
        ("node = Node(1)\nnode.left = Node(2)\nassert f(node) == 4", "an object of the answer's with attributes left"),
        ("import enum\nclass C(enum.IntEnum): RED = 1\nassert f({1: C.RED}) == 4", "C is no built-in type"),
        ("import io\nassert f([io.StringIO('3')]) == 4", "StringIO is no built-in type"),
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
        "from collections import namedtuple\nassert f(namedtuple('P', 'x')(g(1))) == 4",
        "assert f(ValueError(g(1)), range(3), b'x', 1j, iter([g(2)])) == 4",
    ],
)
def test_arguments_that_an_answer_may_have_made_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("assert f(3)(4) == 7", "calls what it returns"),
        ("for x in range(3):\n    g = f(x)\n    assert g(4) == 7", "calls what it returns"),
        ("f.cache_clear()\nassert f(3) == 4", "takes cache_clear of f, of which there are only calls"),
        ("assert f.__doc__ and f(3) == 4", "takes __doc__ of f, of which there are only calls"),
        ("assert g.__wrapped__(3) == f(3)", "takes __wrapped__ of g, of which there are only calls"),
        ("assert f(Color.RED) == 4", "takes RED of Color, of which there are only calls"),
        (
            "def check(candidate):\n    assert candidate(3) == 4\n    assert candidate.__annotations__\ncheck(f)",
            "takes __annotations__ of candidate, of which there are only calls",
        ),
        ("p = f(3)\nassert p.x == 3 and p.y == 4", "takes x of what it returns"),
        ("assert f(3).name == 'Bob' and f(3).value == 3", "takes name of what it returns"),
        ("assert f('Bob', 3).value == 3", "takes value of what it returns"),
        ("assert f(3)._asdict() == {'x': 3}", "takes _asdict of what it returns"),
        ("assert callable(f(3))", "wants callable of what it returns"),
        ("g = f(3)\nassert callable(g) and g(4) == 7", "wants callable of what it returns"),
        ("import numpy as np\nassert isinstance(f(3), np.ndarray)", "wants np.ndarray of what it returns"),
        (
            "from numpy import ndarray, generic\ndef test():\n    x = f(3)\n"
            "    assert isinstance(x, (ndarray, generic))\n    assert x.tolist() == [3]\ntest()",
            "wants ndarray or generic of what it returns",
        ),
        (
            "import unittest\nclass T(unittest.TestCase):\n"
            "    def t(self):\n        self.assertIsInstance(f(3), zip)\nT('t').debug()",
            "wants zip of what it returns",
        ),
        ("with f(3) as v:\n    assert v == 3", "enters what it returns"),
        ("assert isinstance(f(3), Node)", "takes Node for a type, of which there are only calls"),
        ("assert isinstance(f(3), (int, Node))", "takes Node for a type, of which there are only calls"),
        ("for g in (f, h):\n    assert g.cache_info() == f(3)", "takes cache_info of f, of which there are only calls"),
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
        "class T:\n    g = staticmethod(f)\nassert T().g(3) == 4 and T.g(3) == 4",
        "import copy, functools\nassert functools.partial(copy.deepcopy(f), 3)() == 4 and callable(f)",
        "assert f.__name__ == 'f' and f(3) == 4",
        "assert not callable(f(3)) and f(3) == 4",
        "assert isinstance(f(3), (int, map)) and f(3) == 4",
        "import numpy as np\nassert isinstance(np.array(f(3)), np.ndarray) and f(3) == [4]",
        "import numpy as np\nx = f(3)\nx = np.array(x)\nassert isinstance(x, np.ndarray) and f(3) == [4]",
        "import numpy as np\nx = f(3)\nif type(x) != list: assert isinstance(x, np.ndarray)\nassert f(3) == [4]",
        "class array: pass\nassert isinstance(f(3), array) or f(3) == 4",
    ],
)
def test_values_that_some_answer_can_return_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


def test_names_within_long_literals_are_seen() -> None:
    rows = [[[n, -0.5, "x"], {n: (n,)}] for n in range(3_000)]
    for name, what in (("isclose", "uses isclose"), ("eval", "uses eval")):
        test = f"cases = {str(rows)[:-1]}, [[{name}]]]\nassert f(len(cases)) == cases"
        with pytest.raises(ValueError, match=f"problem 7: test_code 0 {what}"):
            Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7)
    test = f"cases = {rows}\nfor case in cases: assert f(case[0][0]) == case[0]"
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


@pytest.mark.parametrize(
    "test", ["assert all(case for case in ['f(1)'])", "def check(add):\n    assert add(1) == 3\ncheck(None)"]
)
def test_test_code_without_a_name_for_the_answer_is_refused(test: str) -> None:
    with pytest.raises(ValueError, match="problem 7: test_code 0 names no function .*: set fn_name"):
        Problem.from_input_output({"test_code": [test]}, problem_id=7)


@pytest.mark.parametrize(
    ("test", "names"),
    [
        ("assert isclose(f(3), 4.0)", "isclose"),
        ("assert np.allclose(f(3), 4.0)", "np"),
        ("assert f(3) == datetime(2020, 1, 3)", "datetime"),
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


def test_test_code_that_crashes_its_process_is_refused() -> None:
    test = "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nassert f(1) == repr(x)"
    with pytest.raises(ValueError, match=r"problem 7: test_code 1 ends the process that runs it \(it is nested too"):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test]}, problem_id=7)


def test_a_judge_lost_while_test_code_is_tried_names_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object, **__: object) -> None:
        raise JudgeLostError("a judge ended with status -9")

    monkeypatch.setattr("reward.problem.ask", lose)
    with pytest.raises(JudgeLostError, match="problem 7: test_code could not be tried .*status -9"):
        Problem.from_input_output({"test_code": ["assert f('lost') == 4"]}, problem_id=7)


def test_the_trials_of_a_problem_share_one_time() -> None:
    tests = [f"while f({n}) != 3: pass\nassert f(0) == 4" for n in range(8)]
    started = time.monotonic()
    limits = Limits(judge_s=2.0)
    assert Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7, limits=limits).num_tests == 8
    assert time.monotonic() - started < 30  # without it 48 and more


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
