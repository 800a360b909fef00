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
from time import process_time
from types import FunctionType, MethodType
from typing import Any

from reward.judge.assertions import execute, prepared
from reward.sandbox.jail.values import CONTAINERS, arguments_text

ENOUGH_S = 1.0
"""CPU seconds for trials of a test that some answer fails."""
TRIAL_S = 3.0
"""CPU seconds of one trial after its first call; test code that crashes the judge needs some to do so."""
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


class Recording(_StandIn):
    """Notes what it is compared with."""

    __slots__ = ("operands",)
    _MAX_OPERANDS = 8
    _is_equal: bool

    def __init__(self) -> None:
        """Be new, as each call returns one."""
        self.operands: list[Any] = []

    def __eq__(self, other: object) -> bool:
        """Agree with all or none, but for what another call returned."""
        if isinstance(other, type(self)):
            return True
        if len(self.operands) < self._MAX_OPERANDS:
            self.operands.append(other)
        return self._is_equal

    def __ne__(self, other: object) -> bool:
        """Say the opposite."""
        return not self == other


class Differing(Recording):
    """Equal to nothing else."""

    __slots__ = ("_truth",)
    _is_equal = False

    def __init__(self, *, truth: bool) -> None:
        """Be true or false."""
        super().__init__()
        self._truth = truth

    def __bool__(self) -> bool:
        """Say which."""
        return self._truth

    def __hash__(self) -> int:
        """Be the same for all calls."""
        return hash(self._truth)


class EqualToAll(Recording):
    """Equal to everything."""

    __slots__ = ()
    _is_equal = True

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
        self,
        answer: Callable[..., Any],
        test_code: str,
        fn_name: str | None,
        *,
        seconds: float = TRIAL_S,
        setup_s: float | None = None,
    ) -> None:
        """Run the test code; beyond so many CPU seconds after its first call it counts as failed.

        Before that it is given `setup_s`, beyond which it is untried; without, this is the test's first trial, which
        shows what its arguments are.
        """
        self._answer, self._seconds = answer, seconds
        self._is_first = setup_s is None
        self._called_at: float | None = None
        self.names: set[str] = set()  # of functions that were called
        self.gives_containers = False  # to a function of the answer
        self.operands: list[list[Any]] = []  # what each call's value was compared with, if that is `Recording`
        self.broken = ""  # what ended the test code before it called anything
        self.refused = ""  # why a call could not be made
        self.misused = ""  # what was done with the value that ended the test code
        self.has_passed = False
        self.is_untried = False  # its time was over before it called anything
        self.is_late = False  # or after that
        self.looks_at_values = False  # it passes by what a call returned, or fails by its type
        self.failed: AssertionError | None = None
        started = process_time()
        try:
            prepared(test_code, fn_name)  # once for all trials
            started = process_time()
            with _ended_after(setup_s):
                execute(test_code, fn_name, self.function)
            self.has_passed = True
        except SystemExit as end:
            self.has_passed = not end.code
            self._note(end)
        except BaseException as error:  # whatever it is, this answer fails
            self._note(error)
        self.looks_at_values |= self.has_passed
        called_at = process_time() if self._called_at is None else self._called_at
        self.setup_s, self.seconds = called_at - started, process_time() - called_at

    def _note(self, error: BaseException) -> None:
        if isinstance(error, AssertionError):
            self.failed = error
        if isinstance(error, _MisusedError):
            self.misused = str(error)
        elif str(error).startswith("a coroutine was expected"):  # asyncio looks at types
            self.misused = "awaits what it returns"
        self.looks_at_values = isinstance(error, (TypeError, AttributeError))
        self.is_late = isinstance(error, _TooLongError) and self._called_at is not None
        self.is_untried = isinstance(error, _TooLongError) and self._called_at is None
        if self._called_at is not None or self.has_passed:
            return
        if not isinstance(error, (_TooLongError, _MisusedError, MemoryError)):
            self.broken = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(": ")[:_MAX_CAUSE]

    def function(self, name: str) -> Callable[..., Any]:
        """Return what stands for the answer's function of a name."""

        def call(*positional: Any, **keywords: Any) -> Any:
            if self._called_at is None:
                self._called_at = process_time()
                signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds)
            elif process_time() - self._called_at > self._seconds:  # the timer counts ticks, and misses some
                raise _TooLongError
            self.names.add(name)
            self.gives_containers |= any(isinstance(given, CONTAINERS) for given in (*positional, *keywords.values()))
            if self._is_first:
                self._note_uncallable([positional, keywords])
            value = self._answer(*positional, **keywords)
            if isinstance(value, Recording):
                self.operands.append(value.operands)
            return value

        return _Function(call, name)

    def _note_uncallable(self, given: list[Any]) -> None:
        try:
            arguments_text(_with_none(given))
        except (TypeError, RecursionError) as error:
            self.refused = str(error)


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
