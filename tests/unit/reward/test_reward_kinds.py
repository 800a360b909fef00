from dataclasses import replace

import pytest
from in_sandbox import score

from reward.apps import score_response
from reward.problem import Problem

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


@pytest.mark.parametrize("first", ["", "assert f(3) == 9\n"])
def test_tests_run_as_the_main_program(first: str) -> None:
    test = f"{first}def test():\n    assert f(4) == 16\nif __name__ == '__main__':\n    test()"
    assert score([test], "def f(x): return x * x").outcome == "pass"
    assert score([test], "def f(x): return 9").outcome == "fail"


@pytest.mark.parametrize(
    ("test", "fn_name"),
    [
        ("def helper(a):\n    g = a + 1\n    return g\nassert f(1) == 1 and g([1, 2]) == 3", "f"),
        ("assert sum(g for g in [1, 2]) == 3\nassert g([1, 2]) == 3", None),
        ("class T:\n    def g(self): return g([1, 2])\nassert (f(1), T().g()) == (1, 3)", "f"),
        ("def helper(g):\n    return g([1, 2])\nassert helper(g) == 3", None),
        ("def set_up():\n    global y\n    y = 3\nset_up()\nassert g([1, 2]) == y", None),
        ("def check(string):\n    return string.upper()\nassert check(str(g([3]))) == '3'", None),
    ],
)
def test_a_name_of_the_answer_may_be_another_elsewhere(test: str, fn_name: str | None) -> None:
    assert score([test], "def f(x): return x\ndef g(x): return sum(x)", fn_name).outcome == "pass"
    assert score([test], "def f(x): return x\ndef g(x): return 0", fn_name).outcome == "fail"


def test_calls_of_one_test_share_its_time() -> None:
    tests = ["for _ in range(50): assert f(1) == 1"]
    slow = "import time\ndef f(x):\n    time.sleep(0.2)\n    return x"
    assert score(tests, slow, test_s=0.7).outcome == "time_out"


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("assert f(2) == 4", "import numpy as np\ndef f(x): return np.int64(x * 2)", "np.int64(x)"),
        ("assert list(f(3)) == [0, 1, 2]", "def f(x): yield from range(x)", "iter([])"),
        ("assert f(3) == [0, 1, 2]", "def f(x): return list(range(x))", "(i for i in range(x))"),  # types are kept
        ("assert next(f(3)) == 3", "import itertools\ndef f(x): return itertools.count(x)", "iter([x + 1])"),
        ("assert set(f({1: 2})) == {1}", "def f(d): return d.keys()", "x.values()"),
        ("assert f({1: 2}) == {1: 2}.items()", "def f(d): return d.items()", "x.keys()"),
        ("assert f(3) == range(3)", "def f(x): return range(x)", "[0, 1, 2]"),
        ("x = [[3, 1]]\nrow = x[0]\nf(x)\nassert row == [1, 3]", "def f(x): x[0].sort()", "x[0]"),
        ("t = (0, [1])\nf(t)\nassert t == (0, [1, 2])", "def f(t): t[1].append(2)", "x"),
        ("d = {}\nf(d)\nassert d == {1: 2}", "def f(d): d[1] = 2", "{1: 2}"),
        ("s = {1, 2}\nf(s)\nassert s == {2}", "def f(s): s.remove(1)", "x - {1}"),
        (
            "from collections import deque\nd = deque([1])\nf(d)\nassert d == deque([1, 2])",
            "def f(d): d.append(2)",
            "x",
        ),
        ("assert f('aab')['a'] == 2 and f('b')['missing'] == 0", "from collections import Counter as f", "{'a': 2}"),
        (
            "c = f('aab')\nassert c['z'] == [] and c == {'z': []}",
            "from collections import defaultdict\ndef f(x): return defaultdict(list)",
            "{}",
        ),
        (
            "from collections import Counter\nc = Counter('ab')\nf(c)\nassert c == Counter('a') and c['b'] == 0",
            "def f(c): del c['b']",
            "x",
        ),
        (
            "from decimal import Decimal\nassert f(Decimal('0.1')) == Decimal('0.3')",
            "def f(x): return x * 3",
            "float(x) * 3",
        ),
        (
            "x = [[1]]\ntry:\n    f(x)\nexcept KeyError:\n    assert x == [[1, 2]]\nelse:\n    assert False",
            "def f(x):\n    x[0].append(2)\n    raise KeyError",
            "{}[1]",
        ),
        (
            "from collections import OrderedDict\nassert f({'b': 2, 'a': 1}) == OrderedDict([('a', 1), ('b', 2)])",
            "from collections import OrderedDict\ndef f(x): return OrderedDict(sorted(x.items()))",
            "__import__('collections').OrderedDict(x)",
        ),
        (
            "from collections import OrderedDict\nassert f(OrderedDict(a=1, b=2)) == ('a', 1)",
            "def f(x): return x.popitem(last=False)",
            "x.popitem()",
        ),
        (
            "def brute(xs: List[int], *rest: Optional[Any]) -> int: return sum(xs)\nassert f([1, 2]) == brute([1, 2])",
            "def f(x): return sum(x)",
            "x[0]",
        ),
        (
            "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Case:\n"
            "    given: list\n    wanted: int\nfor case in [Case([1, 2], 3)]: assert f(case.given) == case.wanted",
            "def f(x): return sum(x)",
            "x[0]",
        ),
        ("assert candidate([1, 2]) == 3", "class Solution:\n    def f(self, x: 'List[int]'): return sum(x)", "x[0]"),
        ("assert f([1, 2]) == 3", "def f(x: List[int]) -> int: return reduce(operator.add, x)", "x[0]"),
        (
            "from collections import deque\nd = deque([1], 2)\nassert f([d, deque([], 2)]).maxlen == 2 and len(d) == 2",
            "from collections import deque\ndef f(x):\n    x[0].append(3)\n    return deque([1], x[1].maxlen)",
            "x[0].append(3) or type(x[0])()",
        ),
        ("assert f('7') == datetime.strptime('7', '%d')", "def f(x): return datetime(1900, 1, int(x))", "x"),
        ("assert f(7) == datetime.datetime(1900, 1, 7)", "def f(x): return datetime(1900, 1, x)", "x"),
        ("assert f(1) == pytest.approx(0.1 + 0.9)", "def f(x): return x", "x + 1"),
        ("with pytest.raises(KeyError): f(1)", "def f(x): return {}[x]", "x"),
        ("b = bytearray(b'ab')\nf(x=b)\nassert b == b'ba'", "def f(x): x.reverse()", "x[::-1]"),
    ],
)
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


def test_the_benchmarks_answers_find_no_names_of_leetcode() -> None:
    problem = Problem.from_input_output({"test_code": ["assert f([1, 2]) == 3"]}, problem_id=1)
    for code in ("def f(x: List[int]): return sum(x)", "class Solution:\n    def f(self, x): return sum(x)"):
        response = f"```python\n{code}\n```"
        assert score_response(problem, response).outcome == "pass"
        assert score_response(replace(problem, leetcode=False), response).outcome == "runtime_error"


def test_the_import_of_a_module_is_not_the_answers_time() -> None:
    tests = [f"import pytest\nassert f({n}) == pytest.approx({n})" for n in range(15)]
    assert score(tests, "def f(x): return x", "f", solution_s=1.0).outcome == "pass"


def test_what_interpreters_define_is_not_the_answers() -> None:
    tests = ["cases = [lambda: f(1) == 2, lambda: f(2) == 3]\nassert all(case() for case in cases)"]
    assert score(tests, "def f(x): return 0\ndef all(x): return True", "f").outcome == "fail"
    assert score(tests, "def f(x): return x + 1", "f").outcome == "pass"
    for end in ("exit", "quit"):
        tests = [f"if f(2) != 4:\n    {end}(1)\nassert f(1) == 1"]
        assert score(tests, f"def f(x): return 1\ndef {end}(code=0): pass", "f").outcome == "fail"
        assert score(tests, "def f(x): return x * x", "f").outcome == "pass"


@pytest.mark.parametrize("file_bytes", [16 << 20, 1 << 20])  # the latter is less than the arguments have
def test_large_arguments_changed_in_place_come_back(file_bytes: int) -> None:
    test = "x = list(range(200_000, 0, -1))\nassert f(x) == 1 and x[-1] == 200_000"
    limits = {"file_bytes": file_bytes}
    assert score([test], "def f(x):\n    x.sort()\n    return x[0]", "f", **limits).outcome == "pass"
    too_much = "def f(x):\n    x.extend(range(400_000))\n    return 1"
    assert score([test], too_much, "f", **limits).outcome == "output_limit"


def test_many_short_calls_take_the_time_of_the_answers_own_code() -> None:
    many = ["for i in range(250): assert f(i) == i"]
    assert score(many, "import numpy, time\ndef f(x): return x", "f", test_s=1.2).outcome == "pass"
    for slow in ("sum(range(500_000))", "time.sleep(0.03)"):
        code = f"import numpy, time\ndef f(x):\n    {slow}\n    return x"
        assert score(many, code, "f", test_s=1.2).outcome == "time_out"


def test_calls_that_take_no_time_have_an_end() -> None:
    assert (
        score(["for _ in range(10_000): assert f(1) == 1"], "def f(x): return x", "f", test_s=0.2).outcome == "time_out"
    )


@pytest.mark.parametrize("hidden", ["try: f(1)\nexcept BaseException: pass", "try: f(1)\nexcept: pass"])
def test_the_end_of_the_answer_cannot_be_hidden(hidden: str) -> None:
    answer = "import os\ndef f(x): return x if x else os._exit(0)"
    assert (
        score(
            [hidden.replace("f(1)", "assert f(0) == 0") + "\nassert f(1) == 1\nassert f(3) == 3"], answer, "f"
        ).outcome
        != "pass"
    )


@pytest.mark.parametrize(
    "test",
    [
        "cases = [(1, 2), (3, 4)]\nassert all(map(lambda c: f(c[0]) == c[1], cases))",
        "for right in map(lambda c: f(c) == 2, [1]): assert right",
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
