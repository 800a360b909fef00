"""What makes test code useless: it cannot tell answers apart, or no answer can pass it."""

import ast
import builtins
import functools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from reward.judge.assertions import execute, names_of_the_answer
from reward.sandbox.jail.values import arguments_text

# What test code means by these is the library's, which it has forgotten to import; other names may be the answer's.
_NAMES_OF_THE_LIBRARY = """
    Counter Decimal Fraction OrderedDict allclose approx array_equal assert_allclose ceil chain deepcopy defaultdict
    deque floor inf isclose isinf islice isnan namedtuple nan partial pi raises reduce sqrt timedelta
"""
# With these, what fails on some values may pass on others.
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.Match, ast.While, ast.comprehension)


def faults_of_tests(tests: Sequence[str], fn_name: str | None) -> list[tuple[int, str, str]]:
    """Those tests that are useless: index, kind of fault, and what causes it.

    "vacuous": it passes whatever the answer's functions return. "uncallable": it calls one with what has no form as
    text. "unusable": it uses what one returns as no plain value can be used. "undefined": it uses a name of the library
    that it does not import, which an answer could define. They are tried with functions that return what differs from
    everything (true and false), None, and what equals everything.
    """
    faults = []
    for index, test_code in enumerate(tests):
        trials = [_Trial(value) for value in (_Differing(truth=True), _Differing(truth=False), None, _EqualToAll())]
        has_passed = [trial.passes(test_code, fn_name) for trial in trials]
        uncallable = [trial.refused for trial in trials if trial.refused]
        unusable = [trial.misused for trial in trials if trial.misused]
        if uncallable:
            faults.append((index, "uncallable", uncallable[0]))
        elif unusable and not _has_branches(test_code):
            faults.append((index, "unusable", unusable[0]))
        elif names := _names_of_the_library(test_code, fn_name):
            faults.append((index, "undefined", ", ".join(names)))
        elif False not in has_passed:  # the test code may have replaced `all`
            faults.append((index, "vacuous", ""))
    return faults


class _MisusedError(AttributeError, TypeError):
    """The test code does with a value of the answer's what can be done with no plain one."""


class _StandIn:
    """Stands for what the answer returns; `vars` has what the test code made of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in _names_of_plain_values():
            raise AttributeError(name)
        raise _MisusedError(f"takes {name} of what it returns")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise _MisusedError("calls what it returns")

    def __await__(self) -> Any:
        raise _MisusedError("awaits what it returns")


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
        self.misused = ""  # what was done with the value that ended the test code

    def passes(self, test_code: str, fn_name: str | None) -> bool:
        try:
            execute(test_code, fn_name, self.function)
        except SystemExit as end:
            return not end.code
        except _MisusedError as error:
            self.misused = str(error)
        except ValueError as error:  # asyncio looks at types
            if str(error).startswith("a coroutine was expected"):
                self.misused = "awaits what it returns"
        except BaseException:  # whatever it is, this answer fails
            pass
        else:
            return True
        return False

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
        timedelta(),
        timezone.utc,
    )
    iterator = (_ for _ in ())
    errors = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    return frozenset(name for example in (*examples, *library, iterator, *errors) for name in dir(example))


def _has_branches(test_code: str) -> bool:
    return any(
        isinstance(node, _BRANCHES) and (not isinstance(node, ast.comprehension) or node.ifs)
        for node in ast.walk(ast.parse(test_code))
    )


def _names_of_the_library(test_code: str, fn_name: str | None) -> list[str]:
    """Names of the library among those that the answer would have to define beside the function that is asked for."""
    names = set(names_of_the_answer(ast.parse(test_code), fn_name)) - {"candidate"}
    known = sorted((names - {fn_name}) & set(_NAMES_OF_THE_LIBRARY.split()))
    return known if len(known) < len(names) else []  # else it asks for a function of that name
