"""Calls in the sandbox: what goes in, and what comes back of values, iterators and errors."""

import datetime
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import pytest
from in_sandbox import run

from reward.sandbox import Execution, arguments_text, from_text
from reward.sandbox.jail.values import to_text


def call(code: str, *arguments: object, **keywords: object) -> Execution:
    return run(code, fn_name="f", arguments=arguments_text(arguments, keywords))


def returned(execution: Execution) -> object:
    outcome, value = from_text(execution.result)
    assert outcome == "value"
    return value


def value_of(expression: str) -> object:
    return returned(call(f"def f():\n    return {expression}"))


@pytest.mark.parametrize(
    "code",
    [
        "from statistics import *\nclass Solution:\n    def fmean(self, a): return a[0]",
        "from statistics import *\ndef fmean(a): return a[0]\nclass Solution:\n    def fmean(self, a): return a[1]",
        "class Solution:\n    def g(self, a): return a[0]\n    def fmean(self, a): return a[1]\nfmean = Solution().g",
        "from builtins import min as fmean",
    ],
)
def test_what_the_answer_defines_comes_before_what_it_imports(code: str) -> None:
    assert returned(run(code, fn_name="fmean", arguments=arguments_text([[3, 9]]))) == 3


def test_names_of_leetcode_are_there() -> None:
    for code in ("def f(a):\n    return max(deque(a))", "class Solution:\n    def f(self, a):\n        return max(a)"):
        assert returned(call(code, [3, 9])) == 9


def test_the_nodes_of_leetcode_are_there() -> None:
    signature = "class Solution:\n    def f(self, a: Optional[TreeNode]) -> Optional[ListNode]:\n"
    assert returned(call(f"{signature}        return a", 3)) == 3
    assert value_of("[ListNode(3, ListNode()).next.val, TreeNode(3).left]") == [0, None]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("bisect.bisect_left(a, 9)", 1),
        ("bisect(a, 3)", 1),
        ("json.dumps(a)", "[3, 9]"),
        ("datetime.date(2020, 1, 2) - date(2020, 1, 1) == timedelta(1)", True),
        ("datetime.strptime('1 2', '%d %m') - datetime(1900, 2, 1) == timedelta()", True),
        ("log2(8)", 3.0),
        ("list(merge(islice(a, 1), map(itemgetter(0), zip_longest(a))))", [3, 3, 9]),
        ("str(Fraction(1, 2)) + str(statistics.mean(a))", "1/26"),
        ("Counter(a) == collections.Counter(a)", True),
    ],
)
def test_names_of_leetcode_mean_what_they_do_there(expression: str, value: object) -> None:
    assert returned(call(f"def f(a):\n    return {expression}", [3, 9])) == value
    annotated = f"def f(a: Iterable[int], g: Callable = None) -> DefaultDict[int, Deque]:\n    return {expression}"
    assert returned(call(annotated, [3, 9])) == value


def test_functions_of_leetcode_may_call_themselves_as_deep_as_there() -> None:
    code = "class Solution:\n    def f(self, n):\n        @cache\n        def g(i):\n"
    code += "            return 1 if i < 2 else (g(i - 1) + g(i - 2)) % 1000\n        return g(n)"
    assert returned(call(code, 20_000)) == 626


def test_call_returns_values() -> None:
    assert returned(call("def f(a, b):\n    return (a, b)", 1, b="x")) == (1, "x")
    assert returned(call("class Solution:\n    def f(self, a: List[int]) -> int:\n        return max(a)", [3, 9])) == 9
    assert returned(call("def f(a):\n    return Counter(a).most_common(1)[0][0]", "abb")) == "b"
    code = "def f(d):\n    return [d[1], {2: None}, True, -0.5]"
    assert returned(call(code, {1: 'é"\ud800'})) == ['é"\ud800', {2: None}, True, -0.5]
    assert value_of("[float('inf'), 10**30]") == [float("inf"), 10**30]
    assert returned(call("def f():\n    print('noise')\n    return None")) is None
    assert returned(call("if __name__ == '__main__':\n    1 / 0\ndef f():\n    return 1")) == 1


@pytest.mark.parametrize(
    "value", ["object()", "lambda: 1", "(x := []).append(x) or x", "__import__('re').match('', '')"]
)
def test_call_returning_no_built_in_value_is_no_crash(value: str) -> None:
    execution = call(f"def f():\n    return {value}")
    assert execution.status == "ok"
    assert from_text(execution.result)[0] == "not plain"


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def g(): pass  # f", "NameError: the code does not define f"),
        ("def f(): exit(0)", "ended without returning a value"),
        ("def f(): raise KeyError(1)", "KeyError: 1"),
        ("def f(x): return x", "TypeError"),
    ],
)
def test_call_run_time_errors(code: str, detail: str) -> None:
    execution = call(code)
    assert execution.status == "runtime_error"
    assert detail in execution.detail


def test_values_keep_their_types() -> None:
    assert value_of("(1, [2.5], {3, 4}, {5: 'x', (6,): None})") == (1, [2.5], {3, 4}, {5: "x", (6,): None})
    assert value_of("[1j, b'x', bytearray(b'y'), frozenset('z')]") == [1j, b"x", bytearray(b"y"), frozenset("z")]
    assert value_of("[10 ** 100_000, -(1 << 20_000), True]") == [10**100_000, -(1 << 20_000), True]
    assert value_of("[{1: 2}.keys(), {1: 2}.values(), {1: [2]}.items()]") == [[1], [2], [(1, [2])]]
    assert value_of("[range(1, 9, 2), deque([1])]") == [range(1, 9, 2), deque([1])]
    assert isinstance(value_of("KeyError('x')"), KeyError)


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    "value",
    [
        Counter("aab"),
        OrderedDict(b=1, a=2),
        *map(Decimal, ("1.50", "-0", "1E+999999", "-Infinity", "9" * 100)),
        Fraction(-1, 3),
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=-1), "here")),
        datetime.timedelta(-1, 2, 3),
        datetime.time(1, 2, 3, 4),
        [{datetime.date(1, 1, 1): {Fraction(1, 2), Decimal("0.1")}}],
    ],
)
def test_values_of_the_librarys_types_go_in_and_come_back(value: object) -> None:
    result = returned(call("def f(x):\n    return x, repr(x)", value))
    assert isinstance(result, tuple)
    assert type(result[0]) is type(value)
    assert (repr(result[0]), result[1]) == (repr(value), repr(value))


def test_other_values_come_back_as_the_plain_ones_in_them() -> None:
    assert repr(from_text(to_text(defaultdict(list, a=1)))) == "{'a': 1}"
    assert repr(from_text(to_text(Point(3)))) == "(3,)"
    assert from_text(to_text(datetime.datetime(1, 1, 1))) == datetime.datetime(1, 1, 1)
    code = """
from collections import Counter
from datetime import date, tzinfo, datetime
from decimal import Decimal
class D(Decimal):
    def __str__(self): return "9"
class C(Counter):
    items = None
class Day(date):
    year = 9
class Zone(tzinfo): pass
def f(): return [D(1), C("a"), Day(1, 1, 1), %s]
"""
    assert repr(returned(call(code % "0"))) == "[Decimal('1'), Counter({'a': 1}), datetime.date(1, 1, 1), 0]"
    assert from_text(call(code % "datetime(1, 1, 1, tzinfo=Zone())").result)[0] == "not plain"


@pytest.mark.parametrize(
    "text",
    [
        '{"Decimal": ["1e9999999999999999999"]}',
        '{"Fraction": [1, 0]}',
        '{"Fraction": ["1e99999"]}',
        '{"datetime": [1, 1, 1, 1, 1, 1, 1, 1]}',
        '{"timedelta": [1e300]}',
        '{"timezone": [[3]]}',
        '{"Counter": 3}',
    ],
)
def test_what_is_no_value_of_the_librarys_types_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        from_text(text)


def test_numpy_scalars_come_back_as_numbers() -> None:
    code = "import numpy as np\ndef f():\n    return [np.int64(3), np.float32(0.5), np.bool_(True), np.str_('x')]"
    assert returned(call(code)) == [3, 0.5, True, "x"]
    assert from_text(call("import numpy as np\ndef f():\n    return np.arange(3)").result)[0] == "not plain"


def test_iterators_give_their_items_and_what_ended_them() -> None:
    assert list(value_of("map(abs, (-1, 2))")) == [1, 2]
    broken = returned(call("def f():\n    yield 1\n    raise ValueError('no more')"))
    assert next(broken) == 1
    with pytest.raises(ValueError, match="no more"):
        next(broken)
    endless = value_of("__import__('itertools').count()")
    assert next(endless) == 0
    with pytest.raises(OverflowError, match="too many items"):
        list(endless)
