"""Trying test code with answers that solve nothing."""

import contextlib
import enum
import functools
import io
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import FunctionType, MethodType
from typing import Any

from reward.judge.assertions import execute
from reward.sandbox.jail.values import arguments_text

ENOUGH_S = 1.0
"""CPU seconds for trials of a test that some answer fails."""
_TRIAL_S = 3.0  # CPU seconds of one trial; test code that crashes the judge needs some to do so
_MAX_CAUSE = 200  # characters
_OF_NAMED_TUPLES = ("_asdict", "_fields", "_replace")


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


class Differing(_StandIn):
    """Equal to nothing else."""

    __slots__ = ("_truth",)

    def __init__(self, *, truth: bool) -> None:
        """Be true or false."""
        self._truth = truth

    def __bool__(self) -> bool:
        """Say which."""
        return self._truth


class EqualToAll(_StandIn):
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        """Agree."""
        return True

    def __ne__(self, other: object) -> bool:
        """Agree."""
        return False

    __hash__ = None  # type: ignore[assignment]


class _AnyError(SystemExit, ValueError, TypeError, KeyError, IndexError, ZeroDivisionError, NotImplementedError):
    """What test code may catch of an answer."""


def always_raise(*_: Any, **__: Any) -> None:
    """Fail whatever it is asked."""
    raise _AnyError(1)


class _TooLongError(BaseException):
    """A trial has had its time."""


@contextlib.contextmanager
def _ended_after(seconds: float | None) -> Iterator[None]:
    """Raise _TooLongError after so many CPU seconds, if any; the judge's own timer goes on."""

    def end(*_: object) -> None:
        raise _TooLongError

    signal.signal(signal.SIGVTALRM, end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0 if seconds is None else max(seconds, 1e-3))
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class Trial:
    """What test code makes of an answer whose functions are all this one."""

    def __init__(
        self, answer: Callable[..., Any], test_code: str, fn_name: str | None, seconds: float | None = None
    ) -> None:
        """Run the test code; beyond so many CPU seconds, or _TRIAL_S after its first call, it counts as failed."""
        self._answer = answer
        self._has_limit = seconds is not None
        self._was_called = False
        self.broken = ""  # what ended the test code before it called anything
        self.refused = ""  # why a call could not be made
        self.misused = ""  # what was done with the value that ended the test code
        self.has_passed = False
        self.looks_at_values = False  # it passes by what a call returned, or fails by its type
        try:
            with _ended_after(seconds):
                execute(test_code, fn_name, self.function)
            self.has_passed = True
        except SystemExit as end:
            self.has_passed = not end.code
            self._note(end)
        except BaseException as error:  # whatever it is, this answer fails
            self._note(error)
            self.looks_at_values = isinstance(error, (TypeError, AttributeError))
            if isinstance(error, _MisusedError):
                self.misused = str(error)
            elif str(error).startswith("a coroutine was expected"):  # asyncio looks at types
                self.misused = "awaits what it returns"
        self.looks_at_values |= self.has_passed

    def _note(self, error: BaseException) -> None:
        if not (self._was_called or self.has_passed or isinstance(error, (_TooLongError, _MisusedError, MemoryError))):
            self.broken = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")[:_MAX_CAUSE]

    def function(self, name: str) -> Callable[..., Any]:
        """Return what stands for the answer's function of a name."""

        def call(*positional: Any, **keywords: Any) -> Any:
            if not (self._was_called or self._has_limit):
                signal.setitimer(signal.ITIMER_VIRTUAL, _TRIAL_S)
            self._was_called = True
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

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return FunctionType  # as what answers are asked by

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
    # These would arrive as an iterator of lines, and a plain number or text.
    if isinstance(value, (io.IOBase, enum.Enum)):
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
    return frozenset(name for example in (*examples, *library, iterator, Exception()) for name in dir(example))
