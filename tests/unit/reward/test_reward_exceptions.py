"""What an answer raises, where test code expects it."""

import pytest
from in_sandbox import score

from reward.apps import score_response
from reward.problem import Problem

OWN = "class E(ValueError):\n    def __init__(self, m): self.m = m\n    def __str__(self): return self.m\n"


EXPECTS_ERROR = """
try:
    f(-1)
except ValueError as error:
    assert str(error) == "negative: -1"
else:
    assert False
assert f(4) == 2
"""


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("if x < 0: raise ValueError(f'negative: {x}')\n    return x // 2", "pass"),
        ("class E(ValueError): pass\n    if x < 0: raise E(f'negative: {x}')\n    return x // 2", "pass"),
        ("if x < 0: raise ValueError('other')\n    return x // 2", "fail"),
        ("if x < 0: raise KeyError(x)\n    return x // 2", "runtime_error"),
        ("return x // 2", "fail"),
        ("if x < 0: raise ValueError(f'negative: {x}')\n    return 1 // 0", "runtime_error"),
        ("raise SystemExit", "runtime_error"),
        ("raise MemoryError", "memory_limit"),
        ("import os\n    os._exit(0)", "runtime_error"),
    ],
)
def test_expected_exceptions(body: str, outcome: str) -> None:
    assert score([EXPECTS_ERROR], f"def f(x):\n    {body}", "f").outcome == outcome


WILD = """
class E(UnicodeDecodeError):
    def __str__(self):
        return "bad"

class T(UnicodeTranslateError):
    def __str__(self):
        return "bad"

def f(x):
    raise E("utf-8", b"a", *x, "r") if len(x) == 2 else T("a", *x[:2], "r")
"""


@pytest.mark.parametrize("positions", [(-(10**12), 1 - 10**12), (10**12, 10**12 + 1), (1, 0), (-(10**12), 0, 0)])
def test_positions_in_no_text_are_not_looked_up(positions: tuple[int, ...]) -> None:
    test = f"import pytest\nwith pytest.raises(ValueError):\n    f({list(positions)})"
    assert score([test], WILD, "f").outcome == "pass"
    problem = Problem.from_input_output({"inputs": [[list(positions)]], "outputs": [1], "fn_name": "f"}, problem_id=1)
    code = WILD.replace("raise", "return")
    assert score_response(problem, f"```python\n{code}\n```").outcome == "fail"


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        ("E('balance 3')", "ValueError", "balance 3"),
        ("FileNotFoundError(2, 'No such file', 'x')", "FileNotFoundError", "[Errno 2] No such file: 'x'"),
        ("ValueError('bad', f)", "ValueError", "bad"),
        ("b'\\xff'.decode()", "UnicodeDecodeError", "can't decode byte 0xff"),
        ("KeyError('k')", "LookupError", "'k'"),
    ],
)
def test_an_exception_arrives_with_its_text(raised: str, kind: str, text: str) -> None:
    test = f"import pytest\nwith pytest.raises({kind}) as error:\n    f(1)\nassert {text!r} in str(error.value)"
    assert score([test], f"{OWN}def f(x):\n    raise {raised}", "f").outcome == "pass"
    assert score([test.replace(text, "other")], f"{OWN}def f(x):\n    raise {raised}", "f").outcome == "fail"


@pytest.mark.parametrize(
    "expects", ["with pytest.raises(SystemExit)", "try", "with pytest.raises((OSError, SystemExit))"]
)
@pytest.mark.parametrize("exits", ["sys.exit(-x)", "raise SystemExit", "exit('no')"])
def test_an_exit_that_test_code_expects_is_seen(expects: str, exits: str) -> None:
    test = f"{expects}:\n    f(-1)\n"
    if expects == "try":
        test += "    assert False\nexcept SystemExit: pass\n"
    tests = [f"{test}assert f(1) == 1"]
    assert score(tests, f"import sys\ndef f(x):\n    if x < 0: {exits}\n    return x", "f").outcome == "pass"
    assert score(tests, f"import sys\ndef f(x):\n    if x < 0: {exits}\n    return 2", "f").outcome == "fail"
    assert score(tests, f"import sys\ndef f(x): {exits}", "f").outcome == "runtime_error"
    assert score(tests, "def f(x): return x", "f").outcome == "fail"


@pytest.mark.parametrize("status", ["", "0", "None", "'x', 2"])
def test_an_exit_of_the_answer_does_not_end_the_test_code_as_passed(status: str) -> None:
    for test in (
        "assert f(3) == 4",
        "import sys\ng = f(3)\nif g != 4: sys.exit(1)",
        "x = [*map(f, [3])]\nassert x == [4]",
    ):
        assert score([test], f"def f(x): raise SystemExit({status})", "f").outcome == "runtime_error"


def test_a_value_too_deep_to_be_read_is_no_exception() -> None:
    test = "import pytest\nwith pytest.raises(Exception):\n    f(1)"
    deep = "def f(x):\n    a = []\n    for _ in range(3000):\n        a = [a]\n    return a"
    assert score([test], deep, "f").outcome == "fail"


@pytest.mark.parametrize("keeps", ["failures.append(error)", "failures = failures or [error]"])
@pytest.mark.parametrize("exits", ["raise SystemExit", "exit()"])
def test_an_exit_that_test_code_keeps_and_raises_later_is_no_pass(keeps: str, exits: str) -> None:
    test = f"""
failures = []
for x, y in [(1, 2), (5, 6), (7, 8)]:
    try:
        assert f(x) == y
    except BaseException as error:
        {keeps}
if failures:
    raise failures[0]
"""
    assert score([test], f"def f(x): {exits}", "f").outcome == "runtime_error"
    assert score([test], "def f(x): return x + 1", "f").outcome == "pass"


def test_an_exit_in_the_clean_up_does_not_hide_the_first_one() -> None:
    test = "try:\n    assert f(1) == 2\nfinally:\n    try: f(0)\n    except BaseException: pass\nassert f(5) == 6\n"
    assert score([test], "def f(x): exit()", "f").outcome == "runtime_error"
