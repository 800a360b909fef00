"""What makes test code useless: it cannot tell answers apart, or no answer can pass it."""

import ast
import builtins
import functools
import io
from collections import Counter, defaultdict, deque
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from time import process_time
from types import MethodType
from typing import Any

from reward.judge.allowed import refused_use
from reward.judge.assertions import execute, modules_used, names_defined, names_of_the_answer
from reward.judge.unusable import unusable_use
from reward.sandbox.jail.values import arguments_text

# What test code means by these is the library's, which it has forgotten to import; other names may be the answer's.
_NAMES_OF_THE_LIBRARY = """
    Counter Decimal Fraction OrderedDict allclose approx array_equal assert_allclose ceil chain datetime deepcopy
    defaultdict deque floor inf isclose isinf islice isnan namedtuple nan np partial pd pi raises reduce sqrt timedelta
"""
# With these, what fails on some values may pass on others.
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.Match, ast.While, ast.comprehension)

_OF_NAMED_TUPLES = ("_asdict", "_fields", "_replace")
_ENOUGH_S = 1.0  # CPU seconds for trials of a test that some answer fails


def faults_of_tests(tests: Sequence[str], fn_name: str | None) -> list[tuple[int, str, str]]:
    """Those tests that are useless: index, kind of fault, and what causes it.

    "refused": it does what test code may not. "nameless": nothing in it can be the answer's. "vacuous": it passes
    whatever the answer's functions return. "uncallable": it calls one with what has no form as text. "unusable": it
    uses one, or what one returns, as no plain value can be used. "undefined": it uses a name of the library that it
    does not import, which an answer could define. "swallowing": it passes an answer that always raises, which tests
    that expect an error may, but not all tests of a problem. "careless": so do all tests with an answer that does not
    look at what it is asked. Tests in which nothing is to be seen are tried with
    functions that return what equals everything, what differs from everything (true and false), and None, until some
    pass and some fail.
    """
    faults = [(index, *fault) for index, test in enumerate(tests) if (fault := _fault_to_be_seen(test, fn_name))]
    started = process_time()
    faults = faults or [
        (index, *fault) for index, test in enumerate(tests) if (fault := _fault_when_tried(test, fn_name))
    ]
    if faults or process_time() - started > _ENOUGH_S / 2:
        return faults
    expects_nan = any("nan" in test for test in tests)  # which may be right
    for what, answer in _CARELESS.items():
        if not (expects_nan and what == "returns nan") and _passes_all(answer, tests, fn_name):
            return [(0, "careless", what)]
    return []


def _fault_to_be_seen(test_code: str, fn_name: str | None) -> tuple[str, str] | None:
    tree = ast.parse(test_code)
    names = set(names_of_the_answer(test_code, fn_name))
    modules = (names & modules_used(test_code)) - {fn_name}
    if use := refused_use(tree, names_defined(tree) | {fn_name or ""}, modules):
        return "refused", use
    if not any(map(_may_fail, ast.walk(tree))):
        return "vacuous", ""
    if not names - modules - {"candidate" if fn_name is None else ""}:
        return "nameless", ""
    functions = (names | {"candidate"}) - modules - (names_defined(tree) - {"candidate"})
    if use := unusable_use(tree, functions - set(_NAMES_OF_THE_LIBRARY.split())):
        return "unusable", use
    return None


def _passes_all(answer: Callable[..., Any], tests: Sequence[str], fn_name: str | None) -> bool:
    """Whether all tests pass a careless answer, but not one that returns what is like no value at all."""
    return all(_Trial(answer, test, fn_name).has_passed for test in tests) and not all(
        _Trial(lambda *_, **__: _UnlikeAll(), test, fn_name).has_passed for test in tests
    )


def _may_fail(node: ast.AST) -> bool:
    """Whether a part of test code can make it fail that is meant to."""
    if isinstance(node, ast.Assert):
        return not (isinstance(node.test, ast.Tuple) and node.test.elts)  # `assert (x == 1, "text")` cannot
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name.startswith(("assert", "raises", "fail")) or name in ("exit", "quit")
    return isinstance(node, ast.Raise)


def _fault_when_tried(test_code: str, fn_name: str | None) -> tuple[str, str] | None:
    trials: list[_Trial] = []
    started = process_time()
    for value in (_EqualToAll(), _Differing(truth=True), _Differing(truth=False), None):
        trials.append(_Trial(lambda *_, value=value, **__: value, test_code, fn_name))
        has_passed = {trial.has_passed for trial in trials}
        if len(has_passed) == 2 or (False in has_passed and process_time() - started > _ENOUGH_S):
            break  # it is not vacuous, and the rest would show little more
    uncallable = [trial.refused for trial in trials if trial.refused]
    unusable = [trial.misused for trial in trials if trial.misused]
    if uncallable:
        return "uncallable", uncallable[0]
    if names := _names_of_the_library(test_code, fn_name):
        return "undefined", ", ".join(names)
    if unusable and not _has_branches(test_code):
        return "unusable", unusable[0]
    if has_passed == {True}:
        return "vacuous", ""
    return ("swallowing", "") if _swallows_errors(test_code, fn_name, trials[0]) else None


def _swallows_errors(test_code: str, fn_name: str | None, equal_to_all: "_Trial") -> bool:
    """Whether test code that looks at what the answer returns passes one that always raises."""
    if not any(isinstance(node, (ast.ExceptHandler, ast.withitem)) for node in ast.walk(ast.parse(test_code))):
        return False
    if not _Trial(_raise, test_code, fn_name).has_passed:
        return False
    return (
        equal_to_all.looks_at_values
        or _Trial(lambda *given, **_: given[0] if given else None, test_code, fn_name).looks_at_values
    )


class _MisusedError(AttributeError, TypeError):
    """The test code does with a value of the answer's what can be done with no plain one."""


class _StandIn:
    """Stands for what the answer returns; `vars` has what the test code made of it."""

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("_") and name not in _OF_NAMED_TUPLES) or name in _names_of_plain_values():
            raise AttributeError(name)
        raise _MisusedError(f"takes {name} of what it returns")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise _MisusedError("calls what it returns")

    def __await__(self) -> Any:
        raise _MisusedError("awaits what it returns")

    def __enter__(self) -> Any:
        raise _MisusedError("enters what it returns")

    def __exit__(self, *_: object) -> None: ...


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


class _UnlikeAll:
    """Cannot be compared, nor be taken for true or false: tests that do so look at the value."""

    def _refuse(self, *_: object) -> Any:
        raise TypeError("neither true nor false")

    __eq__ = __ne__ = __bool__ = _refuse


class _EmptyList(_UnlikeAll, list):
    """Passes loops over what the answer returns, and `all` of it."""


class _NotANumber(_UnlikeAll, float):
    """Passes tests that raise where it is too far away."""


def _overwrite(*positional: Any, **_: Any) -> Any:
    """Pass tests that compare what is returned with what they make of the changed argument."""
    for given in positional:
        if isinstance(given, list):
            given[:] = [0.5]
            return given
    return _UnlikeAll()


_CARELESS: dict[str, Callable[..., Any]] = {
    "returns an empty list": lambda *_, **__: _EmptyList(),
    "returns nan": lambda *_, **__: _NotANumber("nan"),
    "overwrites its argument and returns it": _overwrite,
}
"""By what they do: answers that no test of a problem may pass together with all others."""


class _AnyError(SystemExit, ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, NotImplementedError):
    """What test code may catch of an answer."""


def _raise(*_: Any, **__: Any) -> None:
    raise _AnyError(1)


class _Trial:
    """What test code makes of an answer whose functions are all this one."""

    def __init__(self, answer: Callable[..., Any], test_code: str, fn_name: str | None) -> None:
        self._answer = answer
        self.refused = ""  # why a call could not be made
        self.misused = ""  # what was done with the value that ended the test code
        self.has_passed = False
        self.looks_at_values = False  # it passes by what a call returned, or fails by its type
        try:
            execute(test_code, fn_name, self.function)
            self.has_passed = True
        except SystemExit as end:
            self.has_passed = not end.code
        except BaseException as error:  # whatever it is, this answer fails
            self.looks_at_values = isinstance(error, (TypeError, AttributeError))
            if isinstance(error, _MisusedError):
                self.misused = str(error)
            elif str(error).startswith("a coroutine was expected"):  # asyncio looks at types
                self.misused = "awaits what it returns"
        self.looks_at_values |= self.has_passed

    def function(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **keywords: Any) -> Any:
            try:
                arguments_text(_with_none([positional, keywords]))
            except (TypeError, RecursionError) as error:
                self.refused = str(error)
            return self._answer(*positional, **keywords)

        return _Function(call, name)


class _Function:
    """Stands for a function of the answer's: what can be done with any, but no more."""

    def __init__(self, call: Callable[..., Any], name: str) -> None:
        self._call = call
        self.__name__ = self.__qualname__ = name

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        return self._call(*positional, **keywords)

    def __get__(self, instance: object, _: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        raise _MisusedError(f"takes {name} of {vars(self).get('__name__')}, of which there are only calls")

    def __instancecheck__(self, value: object) -> bool:
        raise _MisusedError(f"takes {self.__name__} for a type, of which there are only calls")


def _with_none(value: Any) -> Any:
    """The value with None, which an answer may return, for what stands for the answer's values.

    Raises:
        TypeError: the test code gave one of them attributes, which plain values do not have.
    """
    if isinstance(value, _StandIn):
        if vars(value):
            raise TypeError(f"an object of the answer's with attributes {', '.join(vars(value))}")
        return None
    if isinstance(value, _Function):
        raise TypeError("function is no built-in type")
    if isinstance(value, io.IOBase):  # it would arrive as an iterator of its lines
        raise TypeError(f"{type(value).__name__} is no built-in type")
    if isinstance(value, dict):
        return [_with_none(list(value)), _with_none(list(value.values()))]
    if isinstance(value, (list, tuple, set, frozenset, deque, KeysView, ValuesView, ItemsView)):
        return [_with_none(item) for item in value]
    return value


@functools.cache
def _names_of_plain_values() -> frozenset[str]:
    """Attributes of what may come back from a call."""
    examples: tuple[Any, ...] = (
        None,
        0,
        0.0,
        0j,
        "",
        b"",
        bytearray(),
        [],
        (),
        set(),
        frozenset(),
        {},
        {}.keys(),
        {}.values(),
        range(0),
    )
    library: tuple[Any, ...] = (
        Counter(),
        defaultdict(),
        deque(),
        Decimal(),
        Fraction(),
        datetime.min,
        time.min,
        timedelta(),
        timezone.utc,
    )
    iterator = (_ for _ in ())
    errors = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return frozenset(name for example in (*examples, *library, iterator, *errors) for name in dir(example))


def _has_branches(test_code: str) -> bool:
    tree = ast.parse(test_code)
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    all_hold = {id(test) for test in tests if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)}
    return any(
        isinstance(node, _BRANCHES)
        and (not isinstance(node, ast.comprehension) or node.ifs)
        and id(node) not in all_hold
        for node in ast.walk(tree)
    )


def _names_of_the_library(test_code: str, fn_name: str | None) -> list[str]:
    """Names of the library among those that the answer would have to define beside the function that is asked for."""
    names = set(names_of_the_answer(test_code, fn_name)) - {"candidate"} - (modules_used(test_code) - {fn_name})
    known = sorted((names - {fn_name}) & set(_NAMES_OF_THE_LIBRARY.split()))
    return known if len(known) < len(names) else []  # else it asks for a function of that name
