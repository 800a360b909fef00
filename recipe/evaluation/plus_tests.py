"""Tests that call one function with many inputs, as evalplus has them, and the values expected of these calls.

evalplus's own files hold inputs. Its data sets on the hub hold test code that loops over a literal list ``inputs``;
of that only the inputs and the tolerance are taken, and values are judged as for its own files: the test code of some
tasks accepts any value, or none (Mbpp/737, 787 and 794; HumanEval/32).
"""

import ast
from dataclasses import dataclass
from typing import Any

from recipe.evaluation.judges import PRESENCE_TASKS, TaskJudge
from reward.limits import Limits
from reward.problem import Problem
from reward.sandbox import Program, Sandbox, arguments_text, from_text

# One call runs all inputs: a reference solution takes up to a minute for them, and returns many values.
_REFERENCE_S = 600.0
_REFERENCE_BYTES = 1 << 30
# Inputs with larger values, in roughly the characters that they take, are left out: answers could not return them.
_MAX_VALUE_CHARACTERS = 16 << 20

_BATCH = """

def _is_too_large(value, characters):
    items = [value]
    while items and characters >= 0:
        item = items.pop()
        characters -= 8
        if isinstance(item, str):
            characters -= len(item)
        elif isinstance(item, dict):
            items += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            items += item
    return characters < 0


def _values_for_all(inputs, max_characters):
    from time import perf_counter
    values, slowest_s = {{}}, 0.0
    for index, arguments in enumerate(inputs):
        started = perf_counter()
        value = {name}(*arguments)
        slowest_s = max(slowest_s, perf_counter() - started)
        if not _is_too_large(value, max_characters):
            values[index] = value
    return values, slowest_s
"""
_PRESENCE = """

def _is_there(*arguments):
    value = {name}(*arguments)
    return value if isinstance(value, bool) else value is not None
"""


class ReferenceNotRunError(Exception):
    """A reference solution could not be run, which says nothing about it."""


@dataclass(slots=True, kw_only=True, frozen=True)
class CallTests:
    """Inputs of one function; example: ``CallTests(fn_name="f", inputs=[[1, 2]], atol=0.0)`` calls ``f(1, 2)``."""

    fn_name: str  # function to call
    inputs: list[list[Any]]  # [num_tests] positional arguments, plain built-in values
    atol: float  # absolute tolerance; 0: none, but for expected floats


def parse_call_tests(test: str) -> CallTests:
    """Return the inputs of test code that calls a function as ``f(*inp)`` with each ``inp`` of a literal ``inputs``.

    Raises:
        SyntaxError: If it is no Python.
        ValueError: If it is other test code, or the inputs are no literals.
    """
    tree = ast.parse(test)
    nodes = list(ast.walk(tree))
    literals = [node.value for node in nodes if isinstance(node, ast.Assign) and _name(node.targets[0]) == "inputs"]
    called = [_name(node.func) for node in nodes if isinstance(node, ast.Call) and _takes_input(node)]
    names = [name for name in called if name is not None]  # a reference's call comes after the answer's
    if not literals or not names:
        raise ValueError("the test code has no literal `inputs` that a function is called with, as evalplus's has")
    inputs = ast.literal_eval(_Numbers().visit(literals[0]))
    return CallTests(fn_name=names[0], inputs=[list(arguments) for arguments in inputs], atol=_tolerance(nodes))


def problem_of(task_id: str, tests: CallTests, reference: str, sandbox: Sandbox) -> tuple[Problem, float]:
    """Return the problem, with what the reference solution returns as the expected values, and its slowest call (s).

    Raises:
        ValueError: If the reference solution does not run.
        ReferenceNotRunError: If it could not be run.
    """
    program = reference + called_suffix(task_id, tests.fn_name)
    fn_name = called_name(task_id, tests.fn_name)
    execution = sandbox.execute(
        Program(
            code=program + _BATCH.format(name=fn_name),
            fn_name="_values_for_all",
            arguments=arguments_text([tests.inputs, _MAX_VALUE_CHARACTERS]),
            leetcode=False,
        ),
        limits=Limits(memory_bytes=4 << 30, output_bytes=_REFERENCE_BYTES, file_bytes=_REFERENCE_BYTES),
        timeout_s=_REFERENCE_S,
    )
    if execution.status == "infra_error":
        raise ReferenceNotRunError(f"{task_id}: its reference solution could not be run: {execution.detail}")
    if execution.status != "ok":
        raise ValueError(f"{task_id}: its reference solution fails on its own inputs: {execution.detail}")
    outcome, returned = from_text(execution.result)
    if outcome != "value":
        raise ValueError(f"{task_id}: its reference solution returns what is {outcome}: {returned}")
    values, slowest_s = returned
    inputs = [tests.inputs[index] for index in values]
    judges = [
        TaskJudge(task_id=task_id, expected=expected, arguments=arguments, atol=tests.atol)
        for arguments, expected in zip(inputs, values.values(), strict=True)
    ]
    return Problem(problem_id=task_id, inputs=inputs, outputs=judges, kind="value", fn_name=fn_name), slowest_s


def called_name(task_id: str, fn_name: str) -> str:
    """Return the function that is called: a wrapper where only presence counts."""
    return "_is_there" if task_id in PRESENCE_TASKS else fn_name


def called_suffix(task_id: str, fn_name: str) -> str:
    """Return what is appended to a program for that wrapper; it runs in the sandbox, where values can be anything."""
    return _PRESENCE.format(name=fn_name) if task_id in PRESENCE_TASKS else ""


def _tolerance(nodes: list[ast.AST]) -> float:
    """The number that the loop hands to `assertion`, or compares with."""
    for node in nodes:
        last: ast.expr | None = None
        if isinstance(node, ast.Call) and _name(node.func) == "assertion":
            last = node.args[-1]
        elif isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            last = node.test.comparators[-1] if isinstance(node.test.ops[-1], ast.LtE) else None
        if isinstance(last, ast.Constant) and isinstance(last.value, (int, float)):
            return float(last.value)
    return 0.0


def _takes_input(call: ast.Call) -> bool:
    """Whether it is a call like `f(*inp)`."""
    return any(isinstance(argument, ast.Starred) and _name(argument.value) == "inp" for argument in call.args)


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


class _Numbers(ast.NodeTransformer):
    """Makes the names `inf` and `nan` the numbers that they are printed for."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("inf", "nan") else node
