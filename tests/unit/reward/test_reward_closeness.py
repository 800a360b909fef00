"""Test code's comparisons by numpy: nothing is close to something only because it is empty."""

import pytest

from reward.apps import score_response
from reward.problem import Problem

NP = "import numpy as np\n"
# As evalplus's data sets have it, in the two forms that are to be found.
EVALPLUS = """import numpy as np

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and isinstance(exp, float):
        atol = 1e-6
    if {guard}:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

for inp, exp in zip([[3.5], [1.25], [123.0]], [0.5, 0.25, 0.0]):
    assertion(f(*inp), exp, 0)
"""
CHECKS = [
    *(EVALPLUS.format(guard=guard) for guard in ("out != exp and atol != 0", "not exact_match and atol != 0")),
    f"{NP}assert np.allclose(f(3.5), 0.5) and np.allclose(b=0.25, a=f(1.25))",
    f"{NP}assert np.isclose(f(3.5), 0.5).all() and np.isclose([0.25], f(1.25)).all()",
    "from numpy import allclose as close\nassert close(f(3.5), 0.5) and close([0.25], f(1.25))",
    *(
        f"{NP}np.testing.{name}(f(3.5), 0.5)\nnp.testing.{name}(0.25, f(1.25))"
        for name in ("assert_allclose", "assert_almost_equal", "assert_array_almost_equal", "assert_array_equal")
    ),
    f"{NP}np.testing.assert_equal(np.array(f(3.5)), 0.5)\nassert np.array_equiv(f(1.25), 0.25)",
    f"{NP}np.testing.assert_array_almost_equal_nulp(np.array(f(3.5)), np.array(0.5))",
    "from numpy.testing import assert_allclose\nassert_allclose(f(3.5), desired=0.5)",
]


@pytest.mark.parametrize("test", CHECKS)
@pytest.mark.parametrize(
    ("value", "outcome"), [("x % 1.0", "pass"), ("[x % 1.0]", "pass"), ("[]", "fail"), ("()", "fail"), ("[[]]", "fail")]
)
def test_what_is_empty_is_close_to_no_number(test: str, value: str, outcome: str) -> None:
    problem = Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7)
    assert score_response(problem, f"```python\ndef f(x): return {value}\n```").outcome == outcome


@pytest.mark.parametrize(
    ("check", "outcome"),
    [
        ("np.allclose(f(2), [])", "fail"),
        ("np.allclose(f(0), [])", "pass"),
        ("np.allclose(f(0), np.zeros((0, 3))[:, 0])", "pass"),
        ("np.isclose(f(0), []).shape == (0,)", "pass"),
        ("np.isclose(f(2), 0).all()", "pass"),
        ("np.isclose(f(2), [0, 1]).tolist() == [True, False]", "pass"),
        ("np.isclose(f(2), [[0, 0], [1, 0]]).shape == (2, 2)", "pass"),
        ("np.isclose(f(0), [[0]]).tolist() == [[False]]", "pass"),
        ("np.allclose(f(3), 1e-9)", "pass"),
        ("not np.allclose(f(3), 1)", "pass"),
        ("np.testing.assert_allclose(f(2), 0) is None", "pass"),
        ("np.testing.assert_array_equal(f(0), []) is None", "pass"),
        ("np.testing.assert_equal([f(1), f(2)], [[0], [0, 0]]) is None", "pass"),
        ("np.testing.assert_equal({'a': np.array(f(0))}, {'a': []}) is None", "pass"),
        ("np.array_equiv(f(2), 0)", "pass"),
    ],
)
def test_other_shapes_are_stretched_as_by_numpy(check: str, outcome: str) -> None:
    tests = [f"{NP}assert {check}", "assert f(1) == [0]"]
    problem = Problem.from_input_output({"test_code": tests, "fn_name": "f"}, problem_id=7)
    response = "```python\ndef f(n): return [0] * n\n```"
    assert score_response(problem, response).num_passed == (2 if outcome == "pass" else 1)
