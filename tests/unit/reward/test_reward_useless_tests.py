"""Test code that passes answers which solve nothing is refused by name."""

import pytest

from reward.problem import Problem


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
        "def test():\n    assert f(3) == 4\nif __name__ != '__main__': test()",
        "len(f([1, 2])) == 2",
        "assert (len(f([1, 2])) == 2, 'wrong length')",
        "def check(f):\n    return abs(f(2.0) - 4) < 1e-9\ncheck(f)",
    ],
)
def test_tests_that_pass_whatever_the_answer_is_are_refused(test: str) -> None:
    with pytest.raises(ValueError, match="problem 7: test_code 1 passes whatever the answer returns"):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test], "fn_name": "f"}, problem_id=7)


def test_candidate_without_a_name_of_the_function_is_refused() -> None:
    test = "def check(candidate):\n    assert candidate(3) == 4\n"
    with pytest.raises(ValueError, match="problem 7: test_code 0 names no function that the answer could define"):
        Problem.from_input_output({"test_code": [f"{test}check(candidate)"]}, problem_id=7)
    assert Problem.from_input_output({"test_code": [f"{test}check(f)"]}, problem_id=7).num_tests == 1


NP = "import numpy as np\n"


@pytest.mark.parametrize(
    ("tests", "what"),
    [
        ([f"{NP}assert np.allclose(f(3), 9.0)", f"{NP}np.testing.assert_allclose(f(2), 4.0)"], "returns an empty list"),
        (["for a, b in zip(f(3), [1, 2]):\n    assert a == b"], "returns an empty list"),
        (["assert all(a == b for a, b in zip(f(2), [1, 4]))"], "returns an empty list"),
        (["for x in (1, 2):\n    if abs(f(x) - 2 * x) > 1e-6:\n        raise AssertionError(x)"], "returns nan"),
        (["a = [3, 1, 2]\nassert f(a) == sorted(a)"], "overwrites its argument and returns it"),
        (["a = [3, 1, 2]\nassert f(nums=a) == sorted(a)"], "overwrites its argument and returns it"),
        (["m = ['bb', 'a']\nassert f(m) == sorted(m, key=len)"], "empties its arguments and returns the first"),
        (["m = [[1, 2]]\nassert f(m) == [list(r) for r in zip(*m)]"], "empties its arguments and returns the first"),
        (["d = {1: 2}\nassert f(d) == {v: k for k, v in d.items()}"], "empties its arguments and returns the first"),
        (["d = {1: 2}\nassert f(x=d) == dict(sorted(d.items()))"], "empties its arguments and returns the first"),
        (["m = [4, 1]\nassert f([5], m) == sorted(m)"], "empties its arguments and returns the first"),
        (["m = [4, 1]\nassert f(m) == sum(m)"], "empties its arguments and returns 0"),
        (["m = ['b', 'a']\nassert f(m) == ''.join(m)"], "empties its arguments and returns ''"),
        (["for k, v in f('a').items():\n    assert {'a': 1}[k] == v"], "returns an empty dict"),
        (["assert f('babad') in 'bab aba'", "assert f('cbbd') in 'bb'"], "returns an empty text"),
        (["e = 4.0\nassert abs(f(2) - e) <= 1e-9 * max(abs(f(2)), abs(e))"], "returns inf"),
        (["assert f(3) < -2"], "returns -inf"),
        (["if abs(f('banana') - 2.0) > 1e-6: raise AssertionError"], "returns nan"),
        (
            ["a = [i * 7 % 100_003 for i in range(100_000)]\nfor x, y in zip(f(a), sorted(a)): assert x == y"],
            "returns an empty list",
        ),
    ],
)
def test_tests_that_all_pass_a_careless_answer_are_refused(tests: list[str], what: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: test_code 0 passes, as all tests do, an answer that {what}"):
        Problem.from_input_output({"test_code": tests}, problem_id=7)
    assert Problem.from_input_output({"test_code": [*tests, "assert f([1]) == 4"]}, problem_id=7)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(3) == []",
        "assert not f(3)",
        "assert f(3)",
        "assert f(3) != 4",
        "assert str(f(3)) == 'nan'",
        "import math\nassert math.isnan(f(3))",
        "import math\nassert math.isinf(f(3))",
        "a = [1, 2]\nassert f(a) == []",
        "a = [1, 2]\nassert f(a) == 0",
        "d = {1: 2}\nf(x=d)\nassert d == {}",
        "a = iter([1, 2])\nassert list(f(a, {})) == [1, 2]",
        "import pytest\nwith pytest.raises(TypeError): f([3], 'x')",
        "a = [1, 2]\nf(a)\nassert a == []",
        "a = [1, 2]\nassert f(list(a)) == sorted(a)",
        "import unittest\nclass T(unittest.TestCase):\n    def t(self): self.assertEqual(f(3), [])\nT('t').debug()",
    ],
)
def test_tests_that_look_at_what_is_right_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


SWALLOWING = [
    "for x in (1, 2):\n    try: r = f(x)\n    except Exception: continue\n    assert r == x",
    "for x in ([1], [2]):\n    try: r = f(x)\n    except Exception: continue\n    assert sorted(r) == x",
    "for x in (1, 2):\n    try: r = f(x)\n    except ValueError: continue\n    assert isinstance(r, int)",
    "try: r = f(3)\nexcept: pass\nelse: assert r == 4",
    "try:\n    for x in (1, 2): assert f(x) == x\nexcept SystemExit: pass",
    "try: r = f(3)\nexcept (KeyError, TypeError): r = 4\nassert r == 4",
    "import contextlib\nr = 4\nwith contextlib.suppress(Exception): r = f(3)\nassert r == 4",
    "import pytest\nr = 4\ntry: r = f(3)\nexcept (OSError, NotImplementedError): pass\nassert abs(r - 4) < 1e-6",
]


@pytest.mark.parametrize("test", SWALLOWING)
def test_tests_that_all_pass_an_answer_that_always_raises_are_refused(test: str) -> None:
    for tests in ([test], [test, SWALLOWING[0]]):
        with pytest.raises(ValueError, match="problem 7: test_code 0 passes an answer that always raises"):
            Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7)
    tests = [test, "assert f(3) == 4"]
    assert Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7).num_tests == 2


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\nwith pytest.raises(Exception): f(-1)",
        "import pytest\nwith pytest.raises(ValueError): f(-1)",
        "try:\n    f(-1)\n    passed = False\nexcept BaseException:\n    passed = True\nassert passed",
        "try:\n    assert f(3) == 4\nexcept ValueError:\n    assert False",
        "import numpy as np\nwith np.errstate(all='ignore'): assert f(3) == 4",
    ],
)
def test_tests_that_expect_an_error_are_accepted(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1
