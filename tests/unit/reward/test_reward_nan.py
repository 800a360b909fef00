"""What is not a number passes no test code that does not name it, in whatever shape it comes."""

import pytest
from in_sandbox import score

SHAPE = "assert len(r) == len(e)\nfor a, b in zip(r, e):\n    if abs(a - b) > 1e-6: raise ValueError"
ROWS = (
    "assert len(r) == len(e)\nfor x, y in zip(r, e):\n"
    "    assert len(x) == len(y) and not any(abs(a - b) > 1e-6 for a, b in zip(x, y))"
)


def outcome(test: str, body: str) -> tuple[str, str]:
    """What becomes of an answer, and why."""
    code = f"from decimal import Decimal\nnan = float('nan')\ndef f(x, *more):\n    {body}\n"
    result = score([test], code, "f")
    return result.outcome, result.detail


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("if abs(f(3) - 2.5) > 1e-6: raise ValueError", "2.5", "nan"),
        ("if abs(f(3) - 2.5) > 1e-6: raise ValueError", "2.5", "complex(nan, 0)"),
        (f"r = f([1, 2, 5], 2)\ne = [1.5, 3.5]\n{SHAPE}", "[1.5, 3.5]", "[nan] * (len(x) - more[0] + 1)"),
        (f"r = f([[1, 2]])\ne = [[1], [2]]\n{ROWS}", "[[1], [2]]", "[[nan] * len(x) for _ in x[0]]"),
        ("r = f([1])\nif max(abs(r[k] - 1) for k in ('mean', 'max')) > 1e-6: raise ValueError",
         "{'mean': 1, 'max': 1}", "{'mean': nan, 'max': nan}"),
        ("import numpy as np\nr = np.array(f(3, 2))\nassert r.shape == (3, 2)\nassert not np.any(np.abs(r - 1) > 1e-9)",
         "[[1, 1]] * 3", "[[nan] * 2] * 3"),
        ("r = list(f(3))\nassert len(r) == 2\nif any(abs(y - 1) > 0 for y in r): raise ValueError",
         "(1 for _ in '12')", "(nan for _ in '12')"),
        ("assert f('banana') != 3", "2", "Decimal('nan')"),
    ],
)  # fmt: skip
def test_nan_is_wrong_where_it_is_not_named(test: str, right: str, wrong: str) -> None:
    assert outcome(test, f"return {right}")[0] == "pass"
    assert outcome(test, f"return {wrong}") == ("fail", "test 1: nan, of which the tests know nothing")


def test_nan_put_into_an_argument_is_wrong_too() -> None:
    test = "a = [4.0]\nf(a)\nif abs(a[0] - 2) > 1e-6: raise ValueError"
    assert outcome(test, "x[0] = 2.0")[0] == "pass"
    assert outcome(test, "x[0] = nan")[0] == "fail"


@pytest.mark.parametrize(
    "test",
    [
        "import math\nassert math.isnan(f(3))",
        "assert str(f(3)) == 'nan'",
        "import numpy as np\nassert np.allclose(f(3), np.nan, equal_nan=True)",
    ],
)
def test_nan_is_right_where_it_is_asked_for(test: str) -> None:
    assert outcome(test, "return nan")[0] == "pass"
    assert outcome(test, "return 1.0")[0] == "fail"


def test_a_signalling_nan_is_no_error_of_the_answers() -> None:
    test = "import pytest\nwith pytest.raises(ArithmeticError): f(3)\nassert f(4) == 1"
    assert outcome(test, "if x == 3: raise ZeroDivisionError\n    return 1")[0] == "pass"
    assert outcome(test, "return Decimal('sNaN') if x == 3 else 1")[0] == "fail"


def test_an_exception_may_hold_nan() -> None:
    test = "import pytest\nwith pytest.raises(ValueError): f(3)\nassert f(4) == 1"
    assert outcome(test, "if x == 3: raise ValueError(nan)\n    return 1")[0] == "pass"
