"""How one test of a problem is run and judged, by the kind of problem; expected outputs stay in this process."""

import ast
import builtins
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reward.compare import stdout_matches, value_matches
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Execution, Program, Sandbox


@dataclass(slots=True, kw_only=True, frozen=True)
class TestRun:
    """One test of one answer, to be run."""

    problem: Problem
    index: int  # of the test
    code: str  # the answer's
    sandbox: Sandbox
    limits: Limits
    timeout_s: float  # wall seconds of the test


def run_stdin_test(run: TestRun) -> tuple[Execution, bool]:
    """Run a program on standard input and compare its output; returns what it did, and whether that is right."""
    program = Program(code=run.code, stdin=run.problem.inputs[run.index])
    execution = run.sandbox.execute(program, limits=run.limits, timeout_s=run.timeout_s)
    return execution, stdout_matches(execution.stdout, run.problem.outputs[run.index])


def run_call_test(run: TestRun) -> tuple[Execution, bool]:
    """Call a function and compare its value; returns as above."""
    program = Program(code=run.code, fn_name=run.problem.fn_name, arguments=run.problem.inputs[run.index])
    execution = run.sandbox.execute(program, limits=run.limits, timeout_s=run.timeout_s)
    expected = run.problem.outputs[run.index]
    return execution, execution.is_plain and any(value_matches(execution.value, value) for value in expected)


def run_value_test(run: TestRun) -> tuple[Execution, bool]:
    """Call a function and hand its value, of exact built-in types, to the test's judge; returns as above."""
    program = Program(
        code=run.code,
        fn_name=run.problem.fn_name,
        arguments=run.problem.inputs[run.index],
        encoding="tagged",
        leetcode=False,
    )
    execution = run.sandbox.execute(program, limits=run.limits, timeout_s=run.timeout_s)
    is_value = execution.status == "ok" and execution.is_plain
    return execution, is_value and run.problem.outputs[run.index](execution.value)


def run_test_code(run: TestRun) -> tuple[Execution, bool]:
    """Run a data set's assertions here, the answer's functions being proxies whose calls run in the sandbox.

    The test code is as trusted as the data set. It sees plain values only, of exact built-in types: nothing of the
    answer runs here. Every call loads the answer anew, so that it keeps no state from one to the next.
    """
    test_code = run.problem.inputs[run.index]
    calls = _Calls(run)
    namespace: dict[str, Any] = {"__name__": "tests"}
    tree = ast.parse(test_code)
    for name in _names_of_the_answer(tree):
        if name in _modules_used(tree):
            namespace[name] = importlib.import_module(name)
        else:
            namespace[name] = calls.proxy(run.problem.fn_name if name == "candidate" and run.problem.fn_name else name)
    try:
        exec(compile(tree, "tests.py", "exec", dont_inherit=True), namespace)
    except _AnswerEnded as ended:
        return ended.execution, False
    except Exception as error:  # an assertion, or what the test code does with a value of a type that is not right
        detail = "wrong answer" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Execution(status="ok", detail=detail, seconds=calls.seconds), False
    return Execution(status="ok", seconds=calls.seconds), True


KINDS: dict[str, Callable[[TestRun], tuple[Execution, bool]]] = {
    "stdin": run_stdin_test,
    "call": run_call_test,
    "value": run_value_test,
    "test_code": run_test_code,
}


class _AnswerEnded(BaseException):
    """The answer ended without a value; no `except Exception` of the test code may hide it."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(execution.detail)
        self.execution = execution


class _Calls:
    """The calls that one test makes, within its time."""

    def __init__(self, run: TestRun) -> None:
        self._run = run
        self.seconds = 0.0

    def proxy(self, fn_name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            run = self._run
            left_s = run.timeout_s - self.seconds
            if left_s <= 0:
                detail = f"no end within {run.timeout_s:.3g} s"
                raise _AnswerEnded(Execution(status="time_out", detail=detail, seconds=self.seconds))
            program = Program(
                code=run.code, fn_name=fn_name, arguments=list(arguments), encoding="tagged", leetcode=False
            )
            execution = run.sandbox.execute(program, limits=run.limits, timeout_s=left_s)
            self.seconds += execution.seconds
            if execution.status != "ok" or not execution.is_plain:
                execution.seconds = self.seconds
                raise _AnswerEnded(execution)
            return execution.value

        return call


def _names_of_the_answer(tree: ast.Module) -> list[str]:
    """Names that the test code uses and nothing in it defines; where there are none, what it calls first.

    Only the test code decides: an answer that defines `set` or `all` must not change what the assertions mean.
    """
    defined = set(dir(builtins)) | _names_of_parameters(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    # `check(candidate)` names the answer's function as `check` names its parameter.
    undefined = [name for name in used if name not in defined or name == "candidate"]
    return undefined or called[:1]


def _modules_used(tree: ast.Module) -> set[str]:
    """Modules of the standard library that the test code takes attributes of without importing them."""
    bases = [
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    return set(bases) & sys.stdlib_module_names


def _names_of_parameters(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            parameters = [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]
            names.update(parameter.arg for parameter in parameters if parameter is not None)
    return names
