"""What a call changes in place are the objects of the test code."""

import pytest
from in_sandbox import score

PAIR = "a, b = {'id': 1, 'v': 5}, {'id': 2, 'v': 3}\nrows = [a, b]\n"


@pytest.mark.parametrize(
    ("test", "body", "outcome"),
    [
        ("assert f(rows) == a and a['v'] == 5", "x.sort(key=lambda r: r['v'])\n    return x[-1]", "pass"),
        ("assert f(rows) == a and a['v'] == 5", "x.sort(key=lambda r: r['v'])\n    return x[0]", "fail"),
        ("f(rows)\nassert rows == [b, a] and rows[0] is b and a['v'] == 5", "x.reverse()", "pass"),
        ("before = rows[:]\nassert f(rows) is None and rows == before", "x.sort(key=lambda r: r['v'])", "fail"),
        ("f((rows, [a]))\nassert a == {'id': 1, 'v': 5, 'w': [b]}", "x[1][0]['w'] = x[0][1:]", "pass"),
        ("s = [0]\nf({1: s, 2: (s,)})\nassert s == [1]", "x[2][0][0] += 1", "pass"),
        ("s = [0]\nassert f(s) == [0] and f(s) is not s", "return x[:]", "pass"),
        ("s = [0]\nassert f(s) == [0]", "x.append(object())\n    return x", "fail"),
        (
            "from collections import OrderedDict\nd = OrderedDict(a=[1], b=[2])\nf(d)\n"
            "assert list(d.items()) == [('b', [2]), ('a', [1])]",
            "x['a'] = x.pop('a')",
            "pass",
        ),
        ("s = [3, 1]\nassert f(s) == 1 and s == [3, 1]", "x.sort(); x.append(x)\n    return x[0]", "fail"),
        ("s = [3, 1]\nassert f(s) == 1 and s == [3, 1]", "x.sort(); x.append(object())\n    return x[0]", "fail"),
        ("s = [1, 2]\nf(s)\nassert str(s) == '[1.0, 2.0]'", "x[:] = map(float, x)", "pass"),
        ("s = {'a': True}\nf(s)\nassert str(s['a']) == '1'", "x['a'] = 1", "pass"),
        ("import numpy as np\ns = [np.float64(1), 2]\nf(s)\nassert s[0].dtype and s[1] == 3", "x[1] = 3", "pass"),
    ],
)
def test_what_a_call_changed_are_the_objects_of_the_test_code(test: str, body: str, outcome: str) -> None:
    assert score([PAIR + test], f"def f(x):\n    {body}", "f").outcome == outcome
