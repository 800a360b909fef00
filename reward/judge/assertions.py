"""A data set's assertions (HumanEval, MBPP), run on an answer whose functions are calls into the sandbox.

The test code is as trusted as the data set. It sees plain values only, of exact built-in types: nothing of the answer
runs here. Every call loads the answer anew, so that it keeps no state from one to the next.
"""

import ast
import builtins
import importlib
import sys
from collections import deque
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
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
        _execute(test_code, fn_name, answer.function)
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


def faults_of_tests(tests: Sequence[str], fn_name: str | None) -> list[tuple[int, str, str]]:
    """Those tests that cannot tell answers apart: index, kind of fault, and what causes it.

    "vacuous": it passes whatever the answer's functions return. "uncallable": it calls one with what has no form as
    text. They are tried with functions that return what differs from everything (true and false), None, and what
    equals everything.
    """
    faults = []
    for index, test_code in enumerate(tests):
        trials = [_Trial(value) for value in (_Differing(truth=True), _Differing(truth=False), None, _EqualToAll())]
        has_passed = [_passes(test_code, fn_name, trial.function) for trial in trials]
        uncallable = [trial.refused for trial in trials if trial.refused]
        if uncallable:
            faults.append((index, "uncallable", uncallable[0]))
        elif False not in has_passed:  # the test code may have replaced `all`
            faults.append((index, "vacuous", ""))
    return faults


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


class _StandIn:
    """Stands for what the answer returns; `vars` has what the test code made of it."""


class _Differing(_StandIn):
    """Equal to nothing else."""

    __slots__ = ("_truth",)

    def __init__(self, *, truth: bool) -> None:
        self._truth = truth

    def __bool__(self) -> bool:
        return self._truth


class _EqualToAll(_StandIn):
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class _Trial:
    """An answer whose functions return the one value."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.refused = ""  # why a call could not be made

    def function(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **keywords: Any) -> Any:
            try:
                arguments_text(_with_none([positional, keywords]))
            except (TypeError, RecursionError) as error:
                self.refused = str(error)
            return self._value

        return call


def _with_none(value: Any) -> Any:
    """The value with None, which an answer may return, for what stands for the answer's values.

    Raises:
        TypeError: the test code gave one of them attributes, which plain values do not have.
    """
    if isinstance(value, _StandIn):
        if vars(value):
            raise TypeError(f"an object of the answer's with attributes {', '.join(vars(value))}")
        return None
    if isinstance(value, dict):
        return [_with_none(list(value)), _with_none(list(value.values()))]
    if isinstance(value, (list, tuple, set, frozenset, deque, KeysView, ValuesView, ItemsView)):
        return [_with_none(item) for item in value]
    return value


def _passes(test_code: str, fn_name: str | None, function: NamedFunction) -> bool:
    try:
        _execute(test_code, fn_name, function)
    except SystemExit as end:
        return not end.code
    except BaseException:  # whatever it is, this answer fails
        return False
    return True


def _execute(test_code: str, fn_name: str | None, function: NamedFunction) -> None:
    namespace: dict[str, Any] = {"__name__": "tests"}
    tree = ast.parse(test_code)
    for name in _names_of_the_answer(tree, fn_name):
        if name in _modules_used(tree):
            namespace[name] = importlib.import_module(name)
        else:
            namespace[name] = function(fn_name if name == "candidate" and fn_name else name)
    # Whatever the interpreter's options are, assertions count.
    exec(compile(tree, "tests.py", "exec", dont_inherit=True, optimize=0), namespace)


def _names_of_the_answer(tree: ast.Module, fn_name: str | None) -> list[str]:
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
