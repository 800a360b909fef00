import pytest
from hunt import HUNT

from reward import kinds
from reward.apps import Verdict, score_from_verdicts, score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Sandbox

LIMITS = Limits(test_s=5.0)
SUM = Problem.from_input_output(
    {"inputs": ["1\n2\n", "3\n4\n", "0\n0\n", "5\n-5\n"], "outputs": ["3\n", "7\n", "0\n", "0\n"]}, problem_id="sum"
)
ADD = Problem.from_input_output({"inputs": [[1, 2], [3, 4]], "outputs": [3, 7], "fn_name": "add"}, problem_id="add")


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nIt works."


@pytest.mark.parametrize(
    ("verdicts", "score", "outcome"),
    [
        (["compile_error"], -1.0, "compile_error"),
        (["passed", "runtime_error"], -0.6, "runtime_error"),
        (["wrong", "wrong", "wrong", "wrong"], -0.3, "fail"),
        (["passed", "wrong", "wrong", "wrong"], 0.025, "fail"),  # -0.3 + 1.3 / 4
        (["passed", "passed", "wrong", "wrong"], 0.35, "fail"),
        (["passed", "passed", "passed", "passed"], 1.0, "pass"),
        (["passed", "time_out"], -0.6, "time_out"),
        (["output_limit"], -0.6, "output_limit"),
        (["passed", "infra_error"], None, "infra_error"),
    ],
)
def test_tiers_of_equations_7_and_8(verdicts: list[Verdict], score: float | None, outcome: str) -> None:
    result = score_from_verdicts(verdicts, num_tests=4)
    assert result.outcome == outcome
    assert result.score == (score if score is None else pytest.approx(score, abs=1e-12))
    assert result.num_passed == verdicts.count("passed")
    assert result.num_tests == 4


@pytest.mark.parametrize(
    ("response", "score", "outcome", "num_passed"),
    [
        (fenced("print(int(input()) + int(input()))"), 1.0, "pass", 4),
        (fenced("print(0)"), 0.35, "fail", 2),
        (fenced("print('?')"), -0.3, "fail", 0),
        (fenced("a = int(input())\nprint(3)\n1 / (a - 3)"), -0.6, "runtime_error", 1),
        (fenced("print(int(input()) + int(input())"), -1.0, "compile_error", 0),
        ("The sum of two numbers.", -1.0, "compile_error", 0),
        ("print(int(input()) + int(input()))", 1.0, "pass", 4),
    ],
)
def test_stdin_answers(response: str, score: float, outcome: str, num_passed: int) -> None:
    result = score_response(SUM, response, LIMITS)
    assert (result.outcome, result.num_passed, result.num_tests) == (outcome, num_passed, 4)
    assert result.score == pytest.approx(score)


@pytest.mark.parametrize(
    ("code", "score"),
    [
        ("def add(a, b):\n    return a + b", 1.0),
        ("class Solution:\n    def add(self, a, b):\n        return a + b", 1.0),
        ("x = 1  # add", -0.6),
        ("def add(a, b):\n    return 3", 0.35),
        ("def add(a, b):\n    return {a + b}", -0.3),
        ("def plus(a, b):\n    return a + b", -0.6),
        ("def add(a, b) return a + b", -1.0),
    ],
)
def test_call_answers(code: str, score: float) -> None:
    assert score_response(ADD, fenced(code), LIMITS).score == pytest.approx(score)


def test_a_tuple_is_not_the_object_that_stands_for_it_on_the_way() -> None:
    problem = Problem.from_input_output({"inputs": [[1]], "outputs": [{"tuple": [1, 2]}], "fn_name": "f"}, problem_id=1)
    for value, outcome in (("(1, 2)", "fail"), ("{'tuple': (1, 2)}", "pass")):
        assert score_response(problem, fenced(f"def f(x): return {value}"), LIMITS).outcome == outcome


def test_wrapped_tuple_and_line_inputs() -> None:
    problem = Problem.from_input_output(
        {"inputs": ["[1, 2]\n3", "[4]\n5"], "outputs": [[[4, 5]], [[9]]], "fn_name": "plus"}, problem_id=1
    )
    code = "def plus(numbers, n):\n    return tuple(x + n for x in numbers)"
    assert score_response(problem, fenced(code), LIMITS).score == 1.0


@pytest.mark.parametrize("lines", ["Hello\r\nWorld\r\n", ["Hello\r\n", "World\r\n"], ["Hello\r", "World"]])
def test_lines_of_inputs_and_outputs_may_end_as_on_windows(lines: str | list[str]) -> None:
    problem = Problem.from_input_output({"inputs": [lines], "outputs": ["HelloWorld\r\n"]}, problem_id="crlf")
    for reading in ("a = input(); b = input()", "import sys\na, b = sys.stdin.read().split('\\n')[:2]"):
        assert score_response(problem, fenced(f"{reading}\nprint(a + b)"), LIMITS).score == 1.0


def test_solution_budget_bounds_many_slow_tests() -> None:
    problem = Problem.from_input_output({"inputs": ["1"] * 50, "outputs": ["1"] * 50}, problem_id=1)
    result = score_response(
        problem,
        fenced("import time\nwhile time.process_time() < 0.4: pass\nprint(1)"),
        Limits(test_s=5.0, solution_s=1.0),
    )
    assert result.outcome == "time_out"
    assert 1 <= result.num_passed <= 3


@pytest.mark.parametrize(("stdin", "outcome"), [("1", "fail"), ("EXPECTED-7391", "pass")])
def test_expected_output_is_not_in_the_child(stdin: str, outcome: str) -> None:
    # The second case shows that the hunt finds what is there.
    problem = Problem.from_input_output({"inputs": [stdin], "outputs": ["EXPECTED-7391"]}, problem_id=1)
    assert score_response(problem, fenced(HUNT), LIMITS).outcome == outcome


def test_infra_error_has_no_score() -> None:
    result = score_response(SUM, fenced("print(1)"), Limits(startup_s=1e-6, infra_attempts=1))
    assert (result.outcome, result.score) == ("infra_error", None)


@pytest.mark.parametrize("kind", [{"inputs": [[1, 2]], "outputs": [3]}, {"test_code": ["assert add(1, 2) == 3"]}])
@pytest.mark.parametrize("use", ["print(add(1, 2))", "assert add(1, 2) == 3", ">>> add(1, 2)\n3", "# add(1, 2) is 3"])
def test_an_answer_may_show_its_use(kind: dict, use: str) -> None:
    problem = Problem.from_input_output({**kind, "fn_name": "add"}, problem_id="use")
    right, wrong = (fenced(f"def add(a, b):\n    return a {sign} b") for sign in "+-")
    assert score_response(problem, right + fenced(use)).score == 1.0
    assert score_response(problem, right + wrong + fenced(use)).outcome == "fail"
    assert score_response(problem, right + fenced("def add(a, b:\n    return")).outcome == "compile_error"


@pytest.mark.parametrize("kind", ["stdin", "call"])
def test_no_run_follows_a_judgement(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a program could learn by the time that passes until its next run whether it was right."""
    order: list[str] = []
    execute, asked = Sandbox.execute, kinds.ask
    monkeypatch.setattr(Sandbox, "execute", lambda *a, **k: (order.append("run"), execute(*a, **k))[1])
    monkeypatch.setattr(kinds, "ask", lambda *a, **k: (order.append("judge"), asked(*a, **k))[1])
    problem, code = {"stdin": (SUM, "print(7)"), "call": (ADD, "def add(a, b): return 7")}[kind]
    result = score_response(problem, fenced(code), LIMITS)
    assert result.outcome == "fail" and result.num_passed == 1
    assert order == ["run"] * problem.num_tests + ["judge"] * (problem.num_tests - 1)  # one is simply right


def test_an_error_behind_a_wrong_output_decides_and_ends_the_runs() -> None:
    code = "a = int(input())\nprint(1 / a)"  # wrong, wrong, an error, not run
    result = score_response(SUM, fenced(code), LIMITS)
    assert (result.outcome, result.num_passed, result.detail.partition(":")[0]) == ("runtime_error", 0, "test 3")


def test_outputs_that_wait_for_a_judge_are_limited_together() -> None:
    limits = Limits(output_bytes=1000)
    many = Problem.from_input_output({"inputs": ["1\n"] * 80, "outputs": ["1\n"] * 80}, problem_id="many")
    assert score_response(many, fenced("print('x' * 700)"), limits).outcome == "fail"
    result = score_response(many, fenced("print('x' * 900)"), limits)
    assert result.outcome == "output_limit" and "all tests" in result.detail
    assert score_response(many, fenced("print(1, ' ' * 900)"), limits).outcome == "pass"
