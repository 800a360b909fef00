"""The APPS reward of the paper, Eq. 7 and 8: tiers, and a graded score between failure and success.

-1.0                          no code found, or the code does not compile
-0.6                          a run-time error, time-out, or too much memory or output, on any test
-0.3 + 1.3 * passed / total   otherwise: none passed -0.3, all passed 1.0
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from sys import getsizeof
from typing import Literal

from reward.extract import extract_code
from reward.feedback import feedback
from reward.grading import Score
from reward.judge import JudgeLostError, UnjudgeableError, ask
from reward.judge.assertions import modules_used, names_of_the_answer
from reward.kinds import KINDS, Judging, TestRun
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Sandbox, shared_sandbox
from reward.sandbox.execution import Status

_NUM_LARGE_OUTPUTS = 64  # so many times `limits.output_bytes` may wait for a judge, of all tests of an answer
Verdict = Literal["passed", "wrong"] | Status
"""How one test ended; never "ok"."""


def score_from_verdicts(verdicts: Sequence[Verdict], *, num_tests: int, detail: str = "") -> Score:
    """Return the score of Eq. 7 and 8, given the verdicts of a problem's `num_tests` tests up to the first error."""
    num_passed = verdicts.count("passed")
    value: float | None = 1.0  # exactly
    outcome = "pass"
    if verdicts[-1] not in ("passed", "wrong"):
        outcome = verdicts[-1]
        value = {"infra_error": None, "compile_error": -1.0}.get(outcome, -0.6)
    elif num_passed < num_tests:
        value, outcome = -0.3 + 1.3 * num_passed / num_tests, "fail"
    return Score(score=value, outcome=outcome, num_passed=num_passed, num_tests=num_tests, detail=detail)


def score_response(
    problem: Problem, response: str, limits: Limits | None = None, *, sandbox: Sandbox | None = None
) -> Score:
    """Score one answer: find its code, run the tests one after the other, stop at the first error, judge them.

    The call blocks for as long as the tests take, at most about `limits.solution_s`. Several threads may call it. The
    defaults are the values of `Limits`, and the sandbox that this process shares.
    """
    limits = limits or Limits()
    sandbox = sandbox or shared_sandbox()
    said = ""
    try:
        code = find_code(problem, response, limits)
    except UnjudgeableError as error:
        code, said = None, str(error)
    except JudgeLostError as error:
        return score_from_verdicts(["infra_error"], num_tests=problem.num_tests, detail=str(error))
    if code is None:
        score = score_from_verdicts(["compile_error"], num_tests=problem.num_tests, detail=said or "no code found")
        return replace(score, feedback=feedback(problem, score.outcome, [], said, ""))
    verdicts: list[Verdict] = []
    detail = ""
    for number, (verdict, seen) in enumerate(run_tests(problem, code, limits, sandbox), 1):
        verdicts.append(verdict)
        if verdict != "passed" and not detail:
            detail = f"test {number}: {seen}"
        if verdict not in ("passed", "wrong"):
            detail, said = f"test {number}: {seen}", seen
            break
    score = score_from_verdicts(verdicts, num_tests=problem.num_tests, detail=detail)
    passed = [verdict == "passed" for verdict in verdicts]
    return replace(score, feedback=feedback(problem, score.outcome, passed, said, code))


def find_code(problem: Problem, response: str, limits: Limits) -> str | None:
    """Return the code of an answer (`reward.extract`), or None; raises what `reward.judge.ask` raises.

    If the tested function has a name and the answer has several blocks, the last block that defines it is returned.
    """
    if problem.kind == "test_code" and not problem.fn_name:
        return ask(partial(extract_tested, response, problem.inputs[0]), limits=limits).value
    return ask(partial(extract_code, response, *filter(None, [problem.fn_name])), limits=limits).value


def extract_tested(response: str, test_code: str) -> str | None:
    """Return the code of an answer if only the test code names the tested function; called in a judge."""
    return extract_code(response, *set(names_of_the_answer(test_code, None)) - modules_used(test_code))


def run_tests(problem: Problem, code: str, limits: Limits, sandbox: Sandbox) -> Iterator[tuple[Verdict, str]]:
    """Run a program's tests one after the other, up to one that ends in an error, and judge them then.

    Nothing runs after a judgement, so that no program can tell from what runs next, or when, that it was right before.
    All tests together have `limits.solution_s`; those beyond count as `time_out`. With each verdict comes one line for
    people, empty if the test passed.
    """
    seconds = 0.0
    for execution, is_right in list(_run_until_error(problem, code, limits, sandbox)):
        passes = False
        if seconds >= limits.solution_s:
            execution = _late(limits)
        elif execution.status == "ok":
            try:
                passes = is_right()
            except (UnjudgeableError, JudgeLostError) as error:
                execution = _unjudged(error)
        verdict: Verdict = execution.status if execution.status != "ok" else "passed" if passes else "wrong"
        yield verdict, execution.detail or ("wrong answer" if verdict == "wrong" else "")
        seconds += execution.seconds


def _run_until_error(
    problem: Problem, code: str, limits: Limits, sandbox: Sandbox
) -> Iterator[tuple[Execution, Judging]]:
    left_s = limits.solution_s
    left_bytes = _NUM_LARGE_OUTPUTS * limits.output_bytes
    for index in range(problem.num_tests):
        execution, is_right = _late(limits), lambda: False
        if left_bytes < 0:
            execution = Execution(status="output_limit", detail="more output of all tests than waits for a judge")
        elif left_s > 0:
            time_s = min(limits.test_s, left_s)
            run = TestRun(problem=problem, index=index, code=code, sandbox=sandbox, limits=limits, timeout_s=time_s)
            try:
                execution, is_right = KINDS[problem.kind](run)
            except (UnjudgeableError, JudgeLostError) as error:
                execution = _unjudged(error)
        yield execution, is_right
        if execution.status != "ok":
            return
        left_s -= execution.seconds
        left_bytes -= getsizeof(execution.stdout) + len(execution.result)


def _late(limits: Limits) -> Execution:
    return Execution(status="time_out", detail=f"no end of all tests within {limits.solution_s:.3g} s")


def _unjudged(error: UnjudgeableError | JudgeLostError) -> Execution:
    if isinstance(error, JudgeLostError):
        return Execution(status="infra_error", detail=str(error))
    return Execution(status="output_limit", detail=f"what it gave cannot be judged: {error}")
