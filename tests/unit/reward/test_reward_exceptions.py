"""What an answer raises, where test code expects it."""

import pytest
from in_sandbox import score

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


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        ("FileNotFoundError(2, 'No such file', 'x')", "FileNotFoundError", "[Errno 2] No such file"),
        ("ValueError('bad', f)", "ValueError", ""),
        ("b'\\xff'.decode()", "ValueError", "utf-8"),
        ("UnicodeEncodeError('utf-8', 'a', 10**12, 10**12 + 1, 'r')", "ValueError", "utf-8"),  # a position in no text
        ("KeyError('k')", "LookupError", "'k'"),
    ],
)
def test_an_exception_arrives_with_its_arguments(raised: str, kind: str, text: str) -> None:
    test = f"import pytest\nwith pytest.raises({kind}) as error:\n    f(1)\nassert {text!r} in str(error.value)"
    assert score([test], f"def f(x):\n    raise {raised}", "f").outcome == "pass"
    assert score([f"{test} + 'x'"], "def f(x): return x", "f").outcome == "fail"


@pytest.mark.parametrize("expects", ["with pytest.raises(SystemExit)", "try"])
@pytest.mark.parametrize("exits", ["sys.exit(-x)", "exit('no')"])
def test_an_exit_that_test_code_expects_is_seen(expects: str, exits: str) -> None:
    test = f"{expects}:\n    f(-1)\n"
    if expects == "try":
        test += "    assert False\nexcept SystemExit: pass\n"
    tests = [f"{test}assert f(1) == 1"]
    assert score(tests, f"import sys\ndef f(x):\n    if x < 0: {exits}\n    return x", "f").outcome == "pass"
    assert score(tests, f"import sys\ndef f(x):\n    if x < 0: {exits}\n    return 2", "f").outcome == "fail"
    assert score(tests, f"import sys\ndef f(x): {exits}", "f").outcome == "runtime_error"
    assert score(tests, "def f(x): return x", "f").outcome == "fail"


@pytest.mark.parametrize("status", ["", "0", "'x', 2"])
def test_an_exit_of_the_answer_does_not_end_the_test_code_as_passed(status: str) -> None:
    for test in (
        "assert f(3) == 4",
        "import sys\ng = f(3)\nif g != 4: sys.exit(1)",
        "x = [*map(f, [3])]\nassert x == [4]",
    ):
        assert score([test], f"def f(x): raise SystemExit({status})", "f").outcome == "runtime_error"


def test_an_error_that_test_code_raises_again_decides_whatever_was_called_since() -> None:
    test = "try: f(-1)\nexcept ValueError as error: kept = error\nassert f(1) == 1\nraise kept"
    assert score([test], "def f(x):\n    if x < 0: raise ValueError\n    return x", "f").outcome == "runtime_error"


def test_a_value_too_deep_to_be_read_is_no_exception() -> None:
    test = "import pytest\nwith pytest.raises(Exception):\n    f(1)"
    deep = "def f(x):\n    a = []\n    for _ in range(3000):\n        a = [a]\n    return a"
    assert score([test], deep, "f").outcome == "fail"


@pytest.mark.parametrize("exits", ["raise SystemExit", "exit()"])
def test_an_exit_that_test_code_keeps_and_raises_later_is_no_pass(exits: str) -> None:
    test = "kept = []\nfor x in (1, 5):\n    try: assert f(x) == x + 1\n    except BaseException as e: kept.append(e)\n"
    tests = [f"{test}if kept: raise kept[0]"]
    assert score(tests, f"def f(x): {exits}", "f").outcome == "runtime_error"
    assert score(tests, "def f(x): return x + 1", "f").outcome == "pass"


def test_an_exit_in_the_clean_up_does_not_hide_the_first_one() -> None:
    test = "try:\n    assert f(1) == 2\nfinally:\n    try: f(0)\n    except BaseException: pass\nassert f(5) == 6\n"
    assert score([test], "def f(x): exit()", "f").outcome == "runtime_error"
