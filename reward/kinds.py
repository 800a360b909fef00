"""How one test is run and later judged, for each kind of problem; only the judge is given expected outputs.

The judge's CPU seconds count as the test's: what is slow to judge uses up the answer's time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from reward.compare import returned_matches, stdout_matches
from reward.judge import ask
from reward.judge.assertions import load_modules
from reward.judge.assertions import run_test_code as run_assertions
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Program, Sandbox, arguments_text
from reward.sandbox.jail.values import to_text


@dataclass(slots=True, kw_only=True, frozen=True)
class TestRun:
    """One test of one answer, to be run."""

    problem: Problem
    index: int  # of the test
    code: str  # the answer's
    sandbox: Sandbox
    limits: Limits
    timeout_s: float  # seconds of the test, as `Limits.test_s` counts them

    def execute(self, **program: Any) -> Execution:
        """Run the answer, with these fields of `Program`."""
        return self.sandbox.execute(Program(code=self.code, **program), limits=self.limits, timeout_s=self.timeout_s)


Judging = Callable[[], bool]
"""A function that returns whether a run's result is right; called once, after a run that ended well.

It adds to the run's seconds and detail.
"""


def run_stdin_test(run: TestRun) -> tuple[Execution, Judging]:
    """Run a program on standard input; return what it did, and a function that compares its output."""
    execution = run.execute(stdin=run.problem.inputs[run.index])
    expected = run.problem.outputs[run.index].rstrip()
    execution.stdout = execution.stdout.rstrip()
    if execution.stdout == expected:  # most right answers: no need to ask, nor to keep it
        execution.stdout = ""
        return execution, lambda: True
    return execution, partial(_judge_stdout, execution, expected, run.limits)


def _judge_stdout(execution: Execution, expected: str, limits: Limits) -> bool:
    stdout, execution.stdout = execution.stdout, ""
    reply = ask(partial(stdout_matches, stdout, expected), limits=limits)
    execution.seconds += reply.seconds
    return reply.value


def run_call_test(run: TestRun) -> tuple[Execution, Judging]:
    """Call a function; return what it did, and a function that compares its value."""
    problem = run.problem
    arguments = arguments_text(problem.inputs[run.index])
    execution = run.execute(fn_name=problem.fn_name, arguments=arguments)
    accepted = problem.outputs[run.index]
    if execution.result in [to_text(["value", value]).encode() for value in accepted]:  # most right answers
        execution.result = b""
        return execution, lambda: True
    return execution, partial(_judge_value, execution, accepted, run.limits)


def run_test_code(run: TestRun) -> tuple[Execution, Judging]:
    """Run a data set's assertions in the judge, which calls the answer's functions in the sandbox.

    The result is what the run did, and a function that returns whether it passed. The next call depends on what the
    last one returned, so assertions are judged while they run.
    """
    calls = _Calls(run)
    test_code = run.problem.inputs[run.index]
    question = partial(run_assertions, test_code, run.problem.fn_name)
    reply = ask(question, limits=run.limits, load=partial(load_modules, test_code), on_call=calls.call)
    ending, detail = reply.value
    execution = calls.failed if ending == "ended" else Execution(status="ok", detail=detail)
    execution.seconds = calls.seconds + reply.seconds
    return execution, lambda: ending == "passed"


KINDS: dict[str, Callable[[TestRun], tuple[Execution, Judging]]] = {
    "stdin": run_stdin_test,
    "call": run_call_test,
    "test_code": run_test_code,
}


def _judge_value(execution: Execution, accepted: tuple[Any, ...], limits: Limits) -> bool:
    result, execution.result = execution.result, b""
    reply = ask(partial(returned_matches, result, accepted), limits=limits)
    execution.seconds += reply.seconds
    execution.detail = reply.value
    return not execution.detail


class _Calls:
    """The calls that one test makes, within its time."""

    def __init__(self, run: TestRun) -> None:
        self._run = run
        self.seconds = 0.0
        self.failed = Execution(status="ok")  # the last one that ended in an error

    def call(self, fn_name: str, arguments: str) -> tuple[str, bytes, float]:
        run = self._run
        left_s = run.timeout_s - self.seconds
        if left_s <= 0:
            execution = Execution(status="time_out", detail=f"no end within {run.timeout_s:.3g} s")
        else:
            execution = replace(run, timeout_s=left_s).execute(fn_name=fn_name, arguments=arguments, is_tested=True)
        self.seconds += execution.seconds
        if execution.status != "ok":
            self.failed = execution
        return execution.status, execution.result, execution.seconds
