"""A data set's assertions (HumanEval, MBPP), run on an answer whose functions are calls into the sandbox.

The test code is as trusted as the data set. It sees plain values only, of exact built-in types: nothing of the answer
runs here. Every call loads the answer anew, so that it keeps no state from one to the next.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import re
import symtable
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any, NoReturn

from reward.judge.allowed import is_allowed, modules_imported
from reward.judge.clocks import Clocks
from reward.judge.closeness import make_empty_differ
from reward.judge.containers import fill, numbered_arguments
from reward.judge.protocol import Call
from reward.judge.source import TESTS_FILE, compiled, parsed
from reward.sandbox.jail.values import ERRORS, NanError, from_text

NamedFunction = Callable[[str], Callable[..., Any]]
"""From the name of a function of the answer to what stands for it."""
_NAMES_NAN = re.compile(r"(?i)(?<![a-z])nan|isnan")
"""Other test code means numbers where it compares: `if abs(f(3) - 2.5) > 1e-6: raise` says nothing of nan."""
# Of `typing`, for test code's own functions; no answer defines these.
_NAMES_OF_TYPES = """
    Any Callable DefaultDict Deque Dict FrozenSet Generator Iterable Iterator List Mapping Optional Sequence Set Tuple
    Union
"""


def run_test_code(call: Call, test_code: str, fn_name: str | None) -> tuple[str, str]:
    """Run one test; returns "passed", "wrong", or what decides whatever the test code makes of it; and one line on it.

    "ended": a run of the answer. "late": it wants more of an iterator than was read in time.

    Args:
        call: runs a function of the answer.
        test_code: Python source.
        fn_name: the function that the test code calls `candidate`.
    """
    answer = _Answer(call, with_nan=bool(_NAMES_NAN.search(test_code)))
    seen = _run(test_code, fn_name, answer)
    return answer.ending or seen  # the test code may have hidden it


def _run(test_code: str, fn_name: str | None, answer: "_Answer") -> tuple[str, str]:
    try:
        with answer.clocks.shown():
            execute(test_code, fn_name, answer.function)
    # An assertion, what the test code does with a value of a type that is not right, or what it raises itself.
    except BaseException as error:
        if error is answer.raised or any(error is one for one in answer.exits):
            return "ended", ""
        if isinstance(error, SystemExit):  # as an interpreter would end
            return ("wrong", f"the test code ended with exit status {error.code}") if error.code else ("passed", "")
        if isinstance(error, MemoryError):
            raise
        return "wrong", "wrong answer" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"[
            :300
        ]
    return "passed", ""


class _AnswerEndedError(BaseException):
    """No value came of a call that test code can be given; no `except Exception` of it may hide that."""


class _Answer:
    """The answer as the test code sees it."""

    def __init__(self, call: Call, *, with_nan: bool) -> None:
        self._call, self._with_nan = call, with_nan
        self.clocks = Clocks()
        self.ending: tuple[str, str] | None = None  # what decides the test, whatever the test code makes of it
        self.raised: BaseException | None = None  # the last exception of the answer's own
        self.exits: list[SystemExit] = []  # all that would end as a pass: test code may keep one, and raise it later

    def function(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **keywords: Any) -> Any:
            with self.clocks.stopped():
                return self._value(name, positional, keywords)

        call.__name__ = call.__qualname__ = name
        return call

    def _value(self, name: str, positional: tuple, keywords: dict[str, Any]) -> Any:
        if self.ending:
            raise _AnswerEndedError
        arguments, containers = numbered_arguments(positional, keywords)
        status, text, seconds = self._call(name, arguments)
        self.clocks.advance(seconds)
        try:
            kind, content, *changed = (
                from_text(
                    text, containers.__getitem__, self._read_on, with_nan=self._with_nan or status == "runtime_error"
                )
                if status in ("ok", "runtime_error")
                else ("", None)
            )
            for changes in changed:
                fill(containers, changes)
        except NanError:
            self.ending = ("wrong", "nan, of which the tests know nothing")
            raise _AnswerEndedError from None
        except (
            ValueError,
            TypeError,
            LookupError,
            RecursionError,
        ):  # untrusted: the program may write there itself
            kind, content = "not plain", ""
        if status == "ok" and kind == "value":
            return content
        if status == "runtime_error" and kind == "raised" and isinstance(content, ERRORS):
            # One that ends loops would end those of the test code: `all(map(lambda c: f(*c) == 1, cases))`.
            self.raised = RuntimeError("StopIteration") if isinstance(content, StopIteration) else content
            if isinstance(self.raised, SystemExit):
                self.exits.append(self.raised)
            raise self.raised
        self.ending = ("wrong", "the returned value is not plain") if status == "ok" else ("ended", "")
        raise _AnswerEndedError

    def _read_on(self) -> NoReturn:
        self.ending = self.ending or ("late", "")
        raise _AnswerEndedError


def load_modules(tests: str | Sequence[str]) -> bool:
    """Import what test code will, of what it may; returns whether anything was not loaded before."""
    names: set[str] = set()
    for test_code in [tests] if isinstance(tests, str) else tests:
        if "import" in test_code or "pytest" in test_code:
            with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                imported = modules_imported(parsed(test_code))
                names |= imported | (modules_used(test_code) & {"pytest"})
                names |= {"numpy.testing"} if "numpy" in imported and "testing" in test_code else set()
    parsed.cache_clear()  # this process stays, and its memory is that of all questions
    missing = sorted(names - sys.modules.keys())
    for name in missing:
        with contextlib.suppress(Exception):  # the test code will meet it again
            importlib.import_module(name)
    return bool(missing)


def execute(test_code: str, fn_name: str | None, function: NamedFunction) -> None:
    """Run the test code, with what the function gives for the names that the answer is to define."""
    module = ModuleType("__main__")  # much test code runs its tests under `if __name__ == "__main__":`
    sys.modules[module.__name__] = module  # where dataclasses look for what annotations name
    namespace = module.__dict__
    namespace.update({name: getattr(typing, name) for name in _NAMES_OF_TYPES.split()})
    code, names, modules = prepared(test_code, fn_name)
    for name in names:
        namespace[name] = function(fn_name if name == "candidate" and fn_name else name)
    namespace.update(modules)
    if "numpy" in sys.modules:
        make_empty_differ()
    exec(code, namespace)


@functools.lru_cache(maxsize=256)  # of the tests of a problem, each of which is tried often
def prepared(test_code: str, fn_name: str | None) -> tuple[CodeType, list[str], dict[str, Any]]:
    """The test code compiled, the names that the answer is to define, and modules that it uses without import."""
    tree = parsed(test_code)
    used = modules_used(test_code)
    names, modules = [], {}
    for name in names_of_the_answer(test_code, fn_name):
        if name in used and name != fn_name:
            module = importlib.import_module(name)
            is_class = not any(hasattr(module, taken) for taken in attributes_taken(tree, name))
            modules[name] = getattr(module, name, module) if is_class else module
        else:
            names.append(name)
    return compiled(test_code), names, modules


def names_of_the_answer(test_code: str, fn_name: str | None) -> list[str]:
    """Names that the test code uses and does not define where it does, and what the task calls the answer's function.

    That may be a parameter's or a built-in function's name too, or stand in a text that is evaluated. A task that does
    not name it may have a built-in function's for it: `assert sum(10, 15) == 6`.

    Only the test code decides: an answer that defines `set` or `all` must not change what the assertions mean.
    """
    tree = parsed(test_code)
    undefined = set(_undefined(test_code)) - {*builtins.__dict__, *_NAMES_OF_TYPES.split()}
    # `check(candidate)` names the answer's function as `check` names its parameter.
    if any(isinstance(node, ast.Name) and node.id == "candidate" for node in ast.walk(tree)):
        undefined.add("candidate")
    if fn_name:
        return [*undefined, fn_name]
    return sorted(undefined) or _first_called(tree, names_defined(tree))


@functools.lru_cache(maxsize=8)
def _undefined(test_code: str) -> frozenset[str]:
    """Global names that the test code reads, in any scope, and does not set."""
    read: set[str] = set()
    bound: set[str] = set()
    tables = [symtable.symtable(test_code, TESTS_FILE, "exec")]
    for table in tables:
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if is_module or symbol.is_global():
                read.update([symbol.get_name()] if symbol.is_referenced() else [])
                bound.update([symbol.get_name()] if symbol.is_assigned() or symbol.is_imported() else [])
        tables += table.get_children()
    for node in ast.walk(parsed(test_code)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            bound.update(_names_of_module(node.module or ""))
    return frozenset(read - bound)


def names_defined(tree: ast.Module) -> set[str]:
    """Names to which something in the test code gives a meaning."""
    defined = _names_of_parameters(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            defined.update(_names_of_module(node.module or ""))
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            defined.add(node.name)
    return defined


def modules_used(test_code: str) -> set[str]:
    """Modules, of the standard library or `pytest`, that the test code takes attributes of without importing them."""
    undefined = _undefined(test_code) & {*sys.stdlib_module_names, "pytest"}
    return {base for base, _ in _attributes(parsed(test_code))} & undefined


def attributes_taken(tree: ast.Module, name: str) -> set[str]:
    """What the test code takes of the object of this name."""
    return {attribute for base, attribute in _attributes(tree) if base == name}


def _attributes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names and what is taken of them, as `math` and `pi`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr


def _first_called(tree: ast.Module, defined: set[str]) -> list[str]:
    """The function that test code calls first, if it is none of its own and is given plain values."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for call in calls[:1]:
        arguments = [*call.args, *[keyword.value for keyword in call.keywords]]
        if isinstance(call.func, ast.Name) and call.func.id not in defined and all(map(_is_literal, arguments)):
            return [call.func.id]
    return []


def _is_literal(node: ast.AST) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _names_of_module(name: str) -> list[str]:
    """What `from ... import *` gives."""
    if not is_allowed(f"{name}.*"):  # others are not even imported
        return []
    try:
        module = importlib.import_module(name)
    except Exception:  # it has none of this name: the test code will meet that too
        return []
    return getattr(module, "__all__", [name for name in dir(module) if not name.startswith("_")])


def _names_of_parameters(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            parameters = [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]
            names.update(parameter.arg for parameter in parameters if parameter is not None)
    return names
