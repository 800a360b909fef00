"""Test code that passes answers which solve nothing is refused by name."""

import pytest

from reward.judge.trials import Trial
from reward.limits import Limits
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
        ([f"{NP}assert np.all(np.abs(np.array(f(3)) - 9.0) < 1e-6)"], "returns an empty list"),
        (["for a, b in zip(f(3), [1, 2]):\n    assert a == b"], "returns an empty list"),
        (["assert all(a == b for a, b in zip(f(2), [1, 4]))"], "returns an empty list"),
        (["for x in (1, 2):\n    if abs(float(f(x)) - 2 * x) > 1e-6: raise ValueError"], "returns the text nan"),
        (["a = [3, 1, 2]\nassert f(a) == sorted(a)"], "empties its arguments and returns the first"),
        (["a = [3, 1, 2]\nassert f(nums=a) == sorted(a)"], "empties its arguments and returns the first"),
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
        (["if abs(float(f('banana')) - 2.0) > 1e-6: raise AssertionError"], "returns the text nan"),
        (
            ["a = [i * 7 % 100_003 for i in range(100_000)]\nfor x, y in zip(f(a), sorted(a)): assert x == y"],
            "returns an empty list",
        ),
    ],
)
def test_tests_that_all_pass_a_careless_answer_are_refused(tests: list[str], what: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: test_code 0 passes, as all tests do, an answer that {what}"):
        Problem.from_input_output({"test_code": tests}, problem_id=7)
    assert Problem.from_input_output({"test_code": [*tests, "assert f([1]) == 40"]}, problem_id=7)


# How tests look at a value, or do not, before they compare the items of `r` and `e`, which are lists, one by one.
LOOKS = """
    assert isinstance(r, list) | assert type(r) == list | assert type(r) is type(e) | assert type(r) in (list, tuple) |
    assert r != None | assert r != i | assert r is not None | if r == e: continue | r = r if r != e else e
"""


@pytest.mark.parametrize("look", [look.strip() for look in LOOKS.split("|")])
def test_a_look_at_the_type_or_an_early_end_does_not_hide_that_nothing_is_compared(look: str) -> None:
    cases = "for i, e in (([1, 2], [0.5, 1.0]), ([4, 1], [2.0, 0.5])):\n    r = f(i)\n"
    test = f"{cases}    {look}\n    for a, b in zip(r, e): assert abs(a - b) < 1e-6"
    with pytest.raises(ValueError, match="passes, as all tests do, an answer that returns an empty list"):
        Problem.from_input_output({"test_code": [test]}, problem_id=7)


@pytest.mark.parametrize(
    ("check", "what"),
    [
        ("if r != e: assert all(abs(x - e) < 1e-6 for x in r)", "returns an empty list"),
        ("assert r == e or all(abs(x - y) < 1e-6 for x, y in zip(r, [e]))", "returns an empty list"),
        ("assert r == e or abs(r - e) <= 1e-6 * max(abs(r), abs(e))", "returns inf"),
        ("if r: assert r == e", "returns an empty list"),
        ("if r is None: continue\n    assert r == e", "returns None"),
        ("if r is None: continue\n    assert abs(r - e) < 1e-6", "returns None"),
        ("assert r <= e", "returns -inf"),
        ("assert isinstance(r, float) or r[0] == []", "returns inf"),
        ("assert isinstance(r, int) and r is not e and r", "returns True"),
        ("assert isinstance(r, int) and r < e", "returns 0"),
        ("assert len(r) == 1 and not r[0]", r"returns a list of an empty list"),
    ],
)
def test_a_constant_that_all_tests_pass_beside_what_they_ask_for_is_refused(check: str, what: str) -> None:
    test = f"for i, e in ((3, 9.0), (4, 16.0)):\n    r = f(i)\n    {check}"
    with pytest.raises(ValueError, match=f"problem 7: test_code 0 passes, as all tests do, an answer that {what}"):
        Problem.from_input_output({"test_code": [test]}, problem_id=7)
    assert Problem.from_input_output({"test_code": [test, "assert f(5) == 25.0"]}, problem_id=7).num_tests == 2


@pytest.mark.parametrize(
    ("tests", "what"),
    [
        # What the tests expect is made of the arguments after the call.
        (
            ["for n in (2, 3):\n    a = [5] * n\n    p = f(a)\n    q = 1\n    for x in a: q *= x\n    assert p == q"],
            "1",
        ),
        (["a = [2, 9]\nassert abs(f(a) - math.prod(a)) < 1e-6"], "1"),
        (["a = [2, 9]\nassert f(a) == (a.index(max(a)) if a else -1)"], "-1"),
        (["a = [9, 2]\nassert f(a) == (a == sorted(a))"], "True"),
        (["a = [1]\nassert f(a) == (a == sorted(a))", "a = [9, 2]\nassert f(a) == (a == sorted(a))"], "True"),
        (["for a in ([1], [9, 2]): assert f(a) == (a == sorted(a))"], "True"),
        (["a = [9, 2]\nassert f(a) == (a == sorted(a))", "assert f([]) == True"], "True"),
        (["a = [9, 2]\nassert f(a) is (sum(a) / len(a) if a else None)"], "None"),
        (["a = [9]\nassert f(a) == [s for n in range(len(a) + 1) for s in itertools.combinations(a, n)]"], r"\[\(\)\]"),
    ],
)
def test_tests_that_all_pass_what_empties_its_arguments_and_returns_a_constant_are_refused(
    tests: list[str], what: str
) -> None:
    tests = ["import itertools, math\n" + test for test in tests]
    with pytest.raises(ValueError, match=f"an answer that empties its arguments and returns {what} whatever"):
        Problem.from_input_output({"test_code": tests}, problem_id=7)
    tests = [test.replace("f(a)", "f(list(a))") for test in tests]
    assert Problem.from_input_output({"test_code": tests}, problem_id=7)


@pytest.mark.parametrize(
    ("test", "what"),
    [
        ("a = [3, 9, 2]\nassert f(a) == max(a)", "overwrites its arguments and returns 1"),
        ("a = [3, 1]\nassert f(a, 0) == min(a)\nassert f(a, 1) == max(a)", "overwrites its arguments and returns 1"),
        ("a = ['b', 'cc']\nassert f(a) == max(a, key=len)", "overwrites its arguments and returns 'x'"),
        ("d = {'a': 3, 'b': 9}\nassert f(d) == max(d.values())", "overwrites its arguments and returns 1"),
        (
            "for d in ({'a': 3, 'b': 9}, {'c': 2, 'd': 5}): assert f(d) == max(d, key=d.get)",
            "overwrites its arguments and returns its first item",
        ),
        (
            "for m in ([[3, 2], [9, 1]], [[5], [6]]): assert f(m) == max(max(r) for r in m)",
            "overwrites what is in its arguments and returns 1",
        ),
        (
            "p = [(3, 1), (9, 2)]\nassert f(p) == max(a[0] - b[0] for a in p for b in p)",
            "cuts its arguments to their first item and returns 0",
        ),
        (
            "a = [3, 9, 2]\nassert f(a, 2) == sorted(a)[1]\nassert f(a, 1) == a[0] == sorted(a)[0]",
            "overwrites what is in its arguments and returns 1",
        ),
        (
            "m = [[3, 2], [3, 1]]\ne = sorted(m, key=lambda r: r[1])\nassert f(m) == e\nm = [[1], [5]]\n"
            "e = m[::-1]\nassert f(m) == e",
            "empties what is in its arguments and returns the first",
        ),
    ],
)
def test_tests_that_all_pass_what_overwrites_its_arguments_are_refused(test: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"problem 7: test_code 0 passes, as all tests do, an answer that {what}"):
        Problem.from_input_output({"test_code": [test]}, problem_id=7)
    assert Problem.from_input_output({"test_code": [test, "assert f([5]) == 4"]}, problem_id=7)


SETUP = "import hashlib\nfor _ in range({}): hashlib.sha256(b'x' * 50_000).digest()\n"
NEAR = "for i, e in ((2, [4]), (3, [9])):\n    for x, y in zip(f(i), e): assert x == y"


def test_slow_set_up_does_not_keep_careless_answers_from_being_tried() -> None:
    with pytest.raises(ValueError, match="an answer that returns an empty list"):
        Problem.from_input_output({"test_code": [SETUP.format(2_000) + NEAR]}, problem_id=7)


def test_tests_that_are_too_slow_to_be_tried_are_refused_unless_they_compare_at_once() -> None:
    setup = "n = 0\nfor i in range(15_000_000): n += i\n"
    limits = Limits(judge_s=6.0)
    with pytest.raises(ValueError, match="problem 7: test_code 0 cannot, with the others, be tried"):
        Problem.from_input_output({"test_code": [setup + NEAR]}, problem_id=7, limits=limits)
    assert Problem.from_input_output({"test_code": [f"{setup}assert f(n) == 4"]}, problem_id=7, limits=limits)


def test_tests_that_take_too_long_together_are_tried_for_careless_answers() -> None:
    loops = [f"while f({n}) == 3: pass\nfor x, y in zip(f({n}), [1]): assert x == y" for n in range(4)]
    with pytest.raises(ValueError, match="an answer that returns an empty list"):
        Problem.from_input_output({"test_code": loops}, problem_id=7, limits=Limits(judge_s=1.0))


def test_a_trial_ends_although_its_timer_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward.judge.trials.signal.setitimer", lambda *_: None)  # as if it missed all ticks
    trial = Trial(lambda *_: None, "n = 8\nwhile not f(n): n += 1", "f", seconds=0.05)
    assert trial.is_late and not trial.has_passed and 0.05 <= trial.seconds < 1


def test_a_test_that_swallows_errors_does_not_hide_that_all_pass_a_careless_answer() -> None:
    zips = "for a, b in zip(f(3), [1, 2]): assert a == b"
    swallows = "try: r = f(3)\nexcept Exception: r = []\nfor a, b in zip(r, [1, 2]): assert a == b"
    with pytest.raises(ValueError, match="an answer that returns an empty list"):
        Problem.from_input_output({"test_code": [zips, swallows]}, problem_id=7)


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
        "assert f(3) == () and f(4) == ()",
        "assert f(3) is True",
        "assert f(3) is None",
        "assert f(3) in (0, 1)",
        "x, y = f(3)\nassert abs(x - y) < 1e-6",
        "assert abs(poly([1], f([1]))) < 1e-6",
        "a = [1, 2]\nassert f(a) == []",
        "a = [1, 2]\nassert f(a) == 0",
        "d = {1: 2}\nf(x=d)\nassert d == {}",
        "a = iter([1, 2])\nassert list(f(a, {})) == [1, 2]",
        "import pytest\nwith pytest.raises(TypeError): f([3], 'x')",
        "a = [1, 2]\nf(a)\nassert a == []",
        "m = [[3], [4, 5]]\nf(m)\nassert m == [[1], [1, 1]]",
        "for a in ([1, 2], [3]):\n    n = len(a)\n    r = f(a)\n    assert len(r) == n and r[0] != 7",
        "x = [3, 2, 1]\nassert f(x) == 1 and x[-1] == 3",
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
