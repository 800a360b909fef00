"""A data set's assertions (HumanEval, MBPP), run on an answer whose functions are calls into the sandbox.

The test code is as trusted as the data set. It sees plain values only, of exact built-in types: nothing of the answer
runs here. Every call loads the answer anew, so that it keeps no state from one to the next.
"""

import ast
import builtins
import importlib
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from reward.judge.protocol import Call
from reward.sandbox.jail.values import arguments_text, from_text

NamedFunction = Callable[[str], Callable[..., Any]]
"""From the name of a function of the answer to what stands for it."""


def run_test_code(call: Call, test_code: str, fn_name: str | None) -> tuple[str, str]:
    """Run one test; returns "passed", "wrong", or "ended" where a run of the answer decides, and one line on it.

    Args:
        call: runs a function of the answer.
        test_code: Python source.
        fn_name: the function that the test code calls `candidate`.
    """
    answer = _Answer(call)
    try:
        execute(test_code, fn_name, answer.function)
    except _AnswerEndedError:
        return "ended", ""
    except SystemExit as end:  # as an interpreter would end
        if end.code:
            return "wrong", f"the test code ended with exit status {end.code}"
    except MemoryError as error:
        if error is not answer.raised:
            raise
        return "ended", ""
    # An assertion, what the test code does with a value of a type that is not right, or what it raises itself.
    except BaseException as error:
        if error is answer.raised:
            return "ended", ""
        return "wrong", "wrong answer" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"[
            :300
        ]
    if answer.has_ended:  # and the test code hid it
        return "ended", ""
    return "passed", ""


class _AnswerEndedError(BaseException):
    """A run of the answer ended without a value; no `except Exception` of the test code may hide it."""


class _Answer:
    """The answer as the test code sees it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.has_ended = False
        self.raised: Exception | None = None  # the last exception of the answer's own

    def function(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **keywords: Any) -> Any:
            if self.has_ended:
                raise _AnswerEndedError
            status, text = self._call(name, arguments_text(positional, keywords))
            try:
                kind, content, *changed = from_text(text) if status in ("ok", "runtime_error") else ("", None)
            except (ValueError, TypeError):  # untrusted: the program may write there itself
                kind, content, changed = "not plain", "", []
            for arguments in changed:
                _update([list(positional), keywords], arguments)
            if status == "ok" and kind == "value":
                return content
            if status == "runtime_error" and kind == "raised" and isinstance(content, Exception):
                # One that ends loops would end those of the test code: `all(map(lambda c: f(*c) == 1, cases))`.
                self.raised = RuntimeError("StopIteration") if isinstance(content, StopIteration) else content
                raise self.raised
            if status == "ok":
                raise AssertionError("the returned value is not plain")
            self.has_ended = True
            raise _AnswerEndedError

        return call


def _update(old: Any, new: Any) -> Any:
    """Make a list, dict, set, deque or bytearray in place the new one, and what it holds; returns what to put there.

    Of a tuple there is a new one, of what it held.
    """
    if type(old) is not type(new):
        return new
    if isinstance(old, list):
        old[:] = [_update(*pair) for pair in zip(old, new, strict=False)] + new[len(old) :]
    elif isinstance(old, dict):
        items = {key: _update(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        dict.update(old, items)  # Counter's adds
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, tuple) and len(old) == len(new):
        return tuple(_update(*pair) for pair in zip(old, new, strict=True))
    elif isinstance(old, bytearray):
        old[:] = new
    elif isinstance(old, deque):
        old.clear()
        old.extend(new)
    else:
        return new
    return old


def execute(test_code: str, fn_name: str | None, function: NamedFunction) -> None:
    """Run the test code, with what the function gives for the names that the answer is to define."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    tree = ast.parse(test_code)
    for name in names_of_the_answer(tree, fn_name):
        if name in _modules_used(tree):
            namespace[name] = importlib.import_module(name)
        else:
            namespace[name] = function(fn_name if name == "candidate" and fn_name else name)
    # Whatever the interpreter's options are, assertions count.
    exec(compile(tree, "tests.py", "exec", dont_inherit=True, optimize=0), namespace)


def names_of_the_answer(tree: ast.Module, fn_name: str | None) -> list[str]:
    """Names that the test code uses and nothing in it defines; where there are none, what it calls first.

    What the task calls the answer's function is one, even if it is a parameter or a built-in function too.

    Only the test code decides: an answer that defines `set` or `all` must not change what the assertions mean.
    """
    defined = _names_of_parameters(tree)
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
    undefined = [
        name for name in used if name in ("candidate", fn_name) or not (name in defined or name in builtins.__dict__)
    ]
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
