"""Iterators that an answer returns to test code."""

import pytest
from in_sandbox import score


def test_a_slow_iterator_of_many_items_comes_back_whole() -> None:
    slow = "def f(x):\n    for n in range(x):\n        sum(range(50_000))\n        yield n"
    assert score(["assert list(f(1500)) == list(range(1500))"], slow, "f", test_s=6.0).outcome == "pass"


@pytest.mark.parametrize(
    "body",
    [
        "while True: yield 'x' * 10_000",
        "n = 1\n    while True: yield (n := n << 40_000)",
        "n = 1\n    while True: yield 'x' * (n := 4 * n)",  # soon too long for the memory
        "held = []\n    while True: yield held.append(bytes(1 << 26)) or 'x'",
        "while True: yield (i * '.' for i in count())",
    ],
)
def test_of_an_endless_iterator_test_code_may_take_what_it_wants(body: str) -> None:
    code = f"from itertools import count\ndef f(x):\n    yield x\n    yield x + 1\n    {body}"
    assert score(["g = f(1)\nassert (next(g), next(g)) == (1, 2)"], code, "f").outcome == "pass"
    whole = "try:\n    list(f(1))\nexcept OverflowError as error:\n    assert 'too many items' not in str(error)"
    assert score([f"{whole}\nassert f(2) is None"], code, "f").outcome == "fail"


PERFECT = """
def f():
    n = 2
    while True:
        if sum(d for d in range(1, n // 2 + 1) if n % d == 0) == n:
            yield n
        n += 1
"""
CATCHING = """
def f():
    n = 0
    while True:
        try:
            m = sum(range(n))
        except BaseException:
            m = -1
        yield m
        n = n + 1 if n < 3 else 20_000_000
"""


@pytest.mark.parametrize(
    ("test", "code", "outcome"),
    [
        ("g = f()\nassert [next(g) for _ in range(3)] == [6, 28, 496]", PERFECT, "pass"),
        ("g = f()\nassert [next(g) for _ in range(5)][-1] == 33_550_336", PERFECT, "time_out"),
        ("for _ in range(30):\n    g = f()\n    assert (next(g), next(g)) == (6, 28)", PERFECT, "pass"),
        (
            "from itertools import count\nfor n in range(30): assert next(f(n)) == n",
            "from itertools import count as f",
            "pass",
        ),
        ("g = f()\nassert [next(g) for _ in range(4)] == [0, 0, 1, 3]", CATCHING, "pass"),
        ("import itertools\nassert len(list(itertools.islice(f(), 50))) == 50", CATCHING, "time_out"),
        ("g = next(f())\nassert next(g) == 6", f"{PERFECT.replace('def f', 'def g')}\ndef f(): yield g()", "pass"),
    ],
)
def test_of_an_iterator_that_is_slow_test_code_may_take_what_comes_in_time(test: str, code: str, outcome: str) -> None:
    assert score([test], code, "f", test_s=1.5).outcome == outcome


def test_a_long_iterator_with_an_end_comes_back_whole() -> None:
    test = "assert list(map(len, f(90))) == [10_000] * 90"
    assert score([test], "def f(x): return ('x' * 10_000 for _ in range(x))", "f").outcome == "pass"
