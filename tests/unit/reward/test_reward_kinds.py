import pytest
from in_sandbox import score

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
    forged = "def set(x): return 1\ndef f(x): return 0\ndef all(x): return True\ndef exit(x): pass"
    for test in ("assert set(f(1)) == set([7])", "assert all([f(1) == 2])", "if f(1) != 2: exit(1)"):
        assert score([test], forged).outcome == "fail"
    assert score(["assert sum(10, 15) == 6"], "def sum(a, b): return 6").outcome == "pass"  # what the task asks for
    assert score(["assert size(1) == sys.maxsize"], "import sys\ndef size(x): return sys.maxsize").outcome == "pass"


def test_tests_run_as_the_main_program() -> None:
    test = "def test():\n    assert f(4) == 16\nif __name__ == '__main__':\n    test()"
    assert score([test], "def f(x): return x * x").outcome == "pass"
    assert score([test], "def f(x): return 9").outcome == "fail"


@pytest.mark.parametrize(
    ("test", "fn_name"),
    [
        ("def helper(a):\n    g = a + 1\n    return g\nassert f(1) == 1 and g([1, 2]) == 3", "f"),
        ("assert sum(g for g in [1, 2]) == 3\nassert g([1, 2]) == 3", None),
        ("def helper(g):\n    return g([1, 2])\nassert helper(g) == 3", None),
    ],
)
def test_a_name_of_the_answer_may_be_another_elsewhere(test: str, fn_name: str | None) -> None:
    assert score([test], "def f(x): return x\ndef g(x): return sum(x)", fn_name).outcome == "pass"
    assert score([test], "def f(x): return x\ndef g(x): return 0", fn_name).outcome == "fail"


def test_calls_of_one_test_share_its_time() -> None:
    tests = ["for _ in range(10_000): assert f(1) == 1"]
    slow = "import time\ndef f(x):\n    time.sleep(0.2)\n    return x"
    assert score(tests, slow, test_s=0.7).outcome == "time_out"
    assert score(tests, "def f(x): return x", test_s=0.2).outcome == "time_out", "each call counts"


# Test code, a right answer, and what a wrong one returns.
SEEN = [
    ("assert f(2) == 4", "import numpy as np\ndef f(x): return np.int64(x * 2)", "np.int64(x)"),
    ("assert list(f(3)) == [0, 1, 2]", "def f(x): yield from range(x)", "iter([])"),
    ("assert f(3) == [0, 1, 2]", "def f(x): return list(range(x))", "(i for i in range(x))"),  # types are kept
    ("assert next(f(3)) == 3", "import itertools\ndef f(x): return itertools.count(x)", "iter([x + 1])"),
    ("assert list(map(len, f(90))) == [10_000] * 90", "def f(x): return ('x' * 10_000 for _ in range(x))", "iter('x')"),
    ("g = f(1)\nassert (next(g), next(g)) == (1, 2)",
     "def f(x):\n    yield x\n    yield x + 1\n    while True: yield 'x' * 10_000", "iter([x, x])"),
    ("g = f(1)\nassert (next(g), next(g)) == (1, 2)",
     "def f(x):\n    yield 1\n    yield 2\n    while True: yield 'x' * (x := 4 * x)", "iter([x])"),
    ("assert set(f({1: 2})) == {1}", "def f(d): return d.keys()", "x.values()"),
    ("assert f(3) == range(3)", "def f(x): return range(x)", "[0, 1, 2]"),
    ("x = [[3, 1]]\nf(x)\nassert x == [[1, 3]]", "def f(x): x[0].sort()", "x[0]"),
    ("t = (0, [1])\nf(t)\nassert t == (0, [1, 2])", "def f(t): t[1].append(2)", "x"),
    ("d = {}\nf(d)\nassert d == {1: 2}", "def f(d): d[1] = 2", "{1: 2}"),
    ("s = {1, 2}\nf(s)\nassert s == {2}", "def f(s): s.remove(1)", "x - {1}"),
    ("from collections import deque\nd = deque([1])\nf(d)\nassert d == deque([1, 2])", "def f(d): d.append(2)", "x"),
    ("b = bytearray(b'ab')\nf(x=b)\nassert b == b'ba'", "def f(x): x.reverse()", "x[::-1]"),
    ("s = [0]\nassert f(s) == [0] and f(s) is not s", "def f(x): return x[:]", "None"),
    ("s = [3, 1]\nassert f(s) == 1", "def f(x): return min(x)", "x.append(x) or 1"),
    ("s = [3, 1]\nassert f(s) == 1", "def f(x): return min(x)", "x.append(object()) or 1"),
    ("s = [1, 2]\nf(s)\nassert str(s) == '[1.0, 2.0]'", "def f(x): x[:] = map(float, x)", "x"),
    ("x = [[1]]\ntry:\n    f(x)\nexcept KeyError:\n    assert x == [[1, 2]]\nelse:\n    assert False",
     "def f(x):\n    x[0].append(2)\n    raise KeyError", "{}[1]"),
    ("assert f('aab')['a'] == 2 and f('b')['missing'] == 0", "from collections import Counter as f", "{'a': 2}"),
    ("from collections import Counter\nc = Counter('ab')\nf(c)\nassert c == Counter('a') and c['b'] == 0",
     "def f(c): del c['b']", "x"),
    ("from collections import OrderedDict\nassert f(OrderedDict(a=1, b=2)) == ('a', 1)",
     "def f(x): return x.popitem(last=False)", "x.popitem()"),
    ("from decimal import Decimal\nassert f(Decimal(1)) == Decimal(3)", "def f(x): return x * 3", "str(x)"),
    ("from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Case:\n"
     "    given: list\nassert f(Case([1, 2]).given) == 3", "def f(x): return sum(x)", "x[0]"),
    ("assert candidate([1, 2]) == 3", "class Solution:\n    def f(self, x: 'List[int]'): return sum(x)", "x[0]"),
    ("assert f(7) == datetime.datetime(1900, 1, 7)", "def f(x): return datetime(1900, 1, x)", "x"),
    ("from math import *\nassert isclose(f(1), pi)", "from math import pi\ndef f(x): return pi", "x"),
    ("assert f(1) == pytest.approx(0.1 + 0.9)", "def f(x): return x", "x + 1"),
    ("with pytest.raises(KeyError): f(1)", "def f(x): return {}[x]", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("test", "right", "wrong"), SEEN)
def test_what_test_code_may_see_of_a_call(test: str, right: str, wrong: str) -> None:
    assert score([test], right, "f").outcome == "pass"
    assert score([test], f"import numpy as np\ndef f(x): return {wrong}", "f").outcome == "fail"


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\nwith pytest.raises(Exception): f(-1)",
        "import pytest\nwith pytest.raises(AssertionError): f(-1)",
        "try:\n    f(-1)\n    passed = False\nexcept BaseException:\n    passed = True\nassert passed",
    ],
)
def test_a_value_that_is_not_plain_is_no_exception(test: str) -> None:
    assert score([test], "def f(x): return f", "f").outcome == "fail"
    assert score([test], "def f(x): assert x > 0", "f").outcome == "pass"


def test_the_import_of_a_module_is_not_the_answers_time() -> None:
    tests = [f"import pytest\nassert f({n}) == pytest.approx({n})" for n in range(15)]
    assert score(tests, "def f(x): return x", "f", solution_s=1.0).outcome == "pass"


@pytest.mark.parametrize("file_bytes", [16 << 20, 1 << 20])  # the latter is less than the arguments have
def test_large_arguments_changed_in_place_come_back(file_bytes: int) -> None:
    test = "x = list(range(200_000, 0, -1))\nassert f(x) == 1 and x[-1] == 200_000"
    limits = {"file_bytes": file_bytes}
    assert score([test], "def f(x):\n    x.sort()\n    return x[0]", "f", **limits).outcome == "pass"
    too_much = "def f(x):\n    x.extend(range(400_000))\n    return 1"
    assert score([test], too_much, "f", **limits).outcome == "output_limit"


def test_many_short_calls_take_the_time_of_the_answers_own_code() -> None:
    many = ["for i in range(100): assert f(i) == i"]  # about 0.4 CPU seconds, a third of the limit
    assert score(many, "import numpy, time\ndef f(x): return x", "f", test_s=1.2).outcome == "pass"
    for slow in ("sum(range(1_250_000))", "time.sleep(0.08)"):
        code = f"import numpy, time\ndef f(x):\n    {slow}\n    return x"
        assert score(many, code, "f", test_s=1.2).outcome == "time_out"


def test_the_end_of_the_answer_cannot_be_hidden() -> None:
    test = "try: assert f(0) == 0\nexcept BaseException: pass\nassert f(1) == 1\nassert f(3) == 3"
    assert score([test], "import os\ndef f(x): return x if x else os._exit(0)", "f").outcome == "runtime_error"


@pytest.mark.parametrize(
    "test",
    [
        "cases = [(1, 2), (3, 4)]\nassert all(map(lambda c: f(c[0]) == c[1], cases))",
        "assert not any(map(lambda c: f(c) != 2, [1]))",
    ],
)
def test_an_answer_cannot_end_the_loops_of_the_test_code(test: str) -> None:
    assert score([test], "def f(x): raise StopIteration", "f").outcome == "runtime_error"
    assert score([test], "def f(x): return x + 1", "f").outcome == "pass"


def test_the_named_function_is_the_answers_whatever_else_has_its_name() -> None:
    tests = ["assert len([1]) == 1; assert sum([1, 2]) == 3"]
    assert score(tests, "def len(x): return 1", "sum").outcome == "runtime_error"
    assert score(tests, "def sum(x): return x[0] + x[1]", "sum").outcome == "pass"
    as_parameter = "def check(f):\n    assert f(1) == 2\ncheck(f)"
    assert score([as_parameter], "def f(x): return x + 1", "f").outcome == "pass"
    assert score([as_parameter], "def f(x): return x", "f").outcome == "fail"


def test_test_code_may_end_as_an_interpreter_does() -> None:
    for ending, outcome in (("0", "pass"), ("1", "fail"), ("'no'", "fail")):
        result = score([f"import sys\nassert f(1) == 1\nsys.exit({ending})"], "def f(x): return x", "f")
        assert result.outcome == outcome
