"""A data set's assertions (HumanEval, MBPP), run on an answer whose functions are calls into the sandbox.

The test code is as trusted as the data set. It sees plain values only, of exact built-in types: nothing of the answer
runs here. Every call loads the answer again, so that it keeps no state from one to the next.
"""

import ast
import builtins
import contextlib
import functools
import importlib
import itertools
import re
import symtable
import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

from reward.judge.process import Call
from reward.sandbox.jail.values import ERRORS, NanError, arguments_text, from_text

NamedFunction = Callable[[str], Callable[..., Any]]
"""A function that returns, for the name of a function of the answer, the function that test code calls instead."""
USELESS: dict[str, Callable[..., Any]] = {
    "None": lambda *_, **__: None,
    "an empty text": lambda *_, **__: "",
    "0": lambda *_, **__: 0,
    "an empty list": lambda *_, **__: [],
    "its first argument": lambda *given, **named: next(iter((*given, *named.values())), None),
}
"""Functions that solve nothing, by what they return; a problem whose tests pass one of them is refused."""
_TESTS_FILE = "tests.py"  # what test code is called in tracebacks
_LONG = 100  # items of a literal
_LOADED = ("asyncio", "dataclasses", "datetime", "decimal", "fractions", "numpy", "pytest", "statistics", "unittest")
_NAMES_NAN = re.compile(r"(?i)(?<![a-z])nan|isnan")
"""Other test code means numbers where it compares: `if abs(f(3) - 2.5) > 1e-6: raise` says nothing of nan."""


def load_modules(test_code: str) -> None:
    """Import the modules that test code uses and that take long to import."""
    for name in _LOADED:
        if name in test_code:
            importlib.import_module(name)


def passes_useless(tests: Sequence[str], fn_name: str | None, returned: str) -> bool:
    """Return whether all tests of a problem pass if its function is `USELESS[returned]`."""

    def function(name: str) -> Callable[..., Any]:
        return USELESS[returned] if fn_name in (None, name) else _absent

    return all(_ending(test, fn_name, function)[0] == "passed" for test in tests)


def _absent(*_: Any, **__: Any) -> NoReturn:
    raise NameError("the answer does not define it")


def run_test_code(test_code: str, fn_name: str | None, call: Call) -> tuple[str, str]:
    """Run one test; return "passed", "wrong", or "ended" if a run of the answer ended early, and a line of explanation.

    The test code may call the function `fn_name` by the name `candidate` too.
    """
    answer = _Answer(call, with_nan=bool(_NAMES_NAN.search(test_code)))
    seen = _ending(test_code, fn_name, answer.function, answer.is_its_own)
    return answer.ending or seen  # the test code may have hidden it


def _ending(
    test_code: str,
    fn_name: str | None,
    function: NamedFunction,
    is_of_answer: Callable[[BaseException], bool] = lambda _: False,
) -> tuple[str, str]:
    try:
        execute(test_code, fn_name, function)
    # An assertion, what the test code does with a value of a type that is not right, or what it raises itself.
    except BaseException as error:
        if is_of_answer(error):
            return "ended", ""
        if isinstance(error, SystemExit):  # as an interpreter would end
            return ("wrong", f"the test code ended with exit status {error.code}") if error.code else ("passed", "")
        if isinstance(error, MemoryError):
            raise
        said = "wrong answer" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return "wrong", said[:300]
    return "passed", ""


def change(old: Any, new: Any) -> None:
    """Change the container `old` in place to equal `new`; for a tuple, change the containers in it."""
    if isinstance(old, dict):
        old.clear()
        for key, item in dict(new).items():  # Counter.update adds
            old[key] = item
    elif isinstance(old, (list, bytearray)):
        old[:] = new
    elif isinstance(old, (set, deque)):
        old.clear()
        (old.update if isinstance(old, set) else old.extend)(new)
    elif isinstance(old, tuple):
        for one, other in zip(old, new, strict=True):
            change(one, other)


class _AnswerEndedError(BaseException):
    """A call of the answer returned no value; test code cannot hide this by `except Exception`."""


class _Answer:
    """The answer as the test code sees it."""

    def __init__(self, call: Call, *, with_nan: bool) -> None:
        self._call, self._with_nan = call, with_nan
        self.ending: tuple[str, str] | None = None  # what decides the test, whatever the test code makes of it
        self.raised: BaseException | None = None  # the last exception of the answer's own
        self.exits: list[SystemExit] = []  # all that would end as a pass: test code may keep one, and raise it later

    def function(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **keywords: Any) -> Any:
            return self._value(name, positional, keywords)

        call.__name__ = call.__qualname__ = name
        return call

    def is_its_own(self, error: BaseException) -> bool:
        """Return whether an exception is one that the answer raised."""
        return error is self.raised or any(error is one for one in self.exits)

    def _value(self, name: str, positional: tuple, keywords: dict[str, Any]) -> Any:
        if self.ending:
            raise _AnswerEndedError
        given = [*positional, *keywords.values()]
        status, text, _ = self._call(name, arguments_text(positional, keywords))
        kind, content = "not plain", None
        try:
            if status in ("ok", "runtime_error"):
                with_nan = self._with_nan or status == "runtime_error"
                kind, content, *changed = from_text(text, with_nan=with_nan)
            else:
                changed = []
            for number, now in itertools.chain(*changed):
                change(given[number], now)
        except NanError:
            self.ending = ("wrong", "nan, of which the tests know nothing")
            raise _AnswerEndedError from None
        except (ValueError, TypeError, LookupError, RecursionError):  # the program may write there itself
            kind = "not plain"
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


def execute(test_code: str, fn_name: str | None, function: NamedFunction) -> None:
    """Run the test code, with `function(name)` for each name that the answer has to define."""
    module = ModuleType("__main__")  # much test code runs its tests under `if __name__ == "__main__":`
    sys.modules[module.__name__] = module  # where dataclasses look for what annotations name
    namespace = module.__dict__
    used = modules_used(test_code)
    for name in names_of_the_answer(test_code, fn_name):
        if name not in used or name == fn_name:
            namespace[name] = function(fn_name if name == "candidate" and fn_name else name)
        else:
            namespace[name] = importlib.import_module(name)
    sys.argv = [_TESTS_FILE]  # unittest.main() reads it
    # Whatever the interpreter's options are, assertions count.
    exec(compile(test_code, _TESTS_FILE, "exec", dont_inherit=True, optimize=0), namespace)


@functools.lru_cache(maxsize=2)
def parsed(test_code: str) -> ast.Module:
    """Return the syntax tree of test code, not to be changed, without the constant items of long literals.

    Those items are left out because it takes seconds to walk over a megabyte of them.
    """
    tree = ast.parse(test_code)
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) > _LONG:
            node.elts = [item for item in node.elts if not _is_literal(item)]
        nodes.extend(ast.iter_child_nodes(node))
    return tree


def names_of_the_answer(test_code: str, fn_name: str | None) -> list[str]:
    """Return the names that test code uses without a definition, and the task's name for the answer's function.

    The latter may also be the name of a parameter or of a built-in function, or stand in a text that is evaluated. If
    the task gives no name, the tested function may have a built-in function's: `assert sum(10, 15) == 6`.

    Only the test code decides: an answer that defines `set` or `all` must not change what the assertions mean.
    """
    tree = parsed(test_code)
    undefined = set(_undefined(test_code)) - builtins.__dict__.keys()
    # `check(candidate)` names the answer's function as `check` names its parameter.
    if any(isinstance(node, ast.Name) and node.id == "candidate" for node in ast.walk(tree)):
        undefined.add("candidate")
    if fn_name:
        return [*undefined, fn_name]
    return sorted(undefined) or _first_called(tree)


@functools.lru_cache(maxsize=8)
def _undefined(test_code: str) -> frozenset[str]:
    """Return the global names that the test code reads, in any scope, and does not set."""
    read: set[str] = set()
    bound: set[str] = set()
    tables = [symtable.symtable(test_code, _TESTS_FILE, "exec")]
    for table in tables:
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if is_module or symbol.is_global():
                read.update([symbol.get_name()] if symbol.is_referenced() else [])
                bound.update([symbol.get_name()] if symbol.is_assigned() or symbol.is_imported() else [])
        tables += table.get_children()
    for node in ast.walk(parsed(test_code)):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            with contextlib.suppress(Exception):  # it has none of this name: the test code will meet that too
                bound.update(dir(importlib.import_module(node.module or "")))
    return frozenset(read - bound)


def modules_used(test_code: str) -> set[str]:
    """Return the modules (standard library or `pytest`) whose attributes the test code uses without an import."""
    taken = [node.value for node in ast.walk(parsed(test_code)) if isinstance(node, ast.Attribute)]
    undefined = _undefined(test_code) & {*sys.stdlib_module_names, "pytest"}
    return {base.id for base in taken if isinstance(base, ast.Name)} & undefined


def _first_called(tree: ast.Module) -> list[str]:
    """Return the function that test code calls first, if it is a built-in one and is given plain values."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for call in calls[:1]:
        arguments = [*call.args, *[keyword.value for keyword in call.keywords]]
        if isinstance(call.func, ast.Name) and call.func.id in builtins.__dict__ and all(map(_is_literal, arguments)):
            return [call.func.id]
    return []


def _is_literal(node: ast.AST) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
