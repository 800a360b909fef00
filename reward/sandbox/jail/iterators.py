"""Reading iterators that an answer returns: they may have no end, take any time, or stop on the way."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

Text = Callable[[Any], str]

_MAX_ITEMS = 100_000
_end_at = math.inf  # CPU seconds of this process
_read_s = math.inf  # CPU seconds for the reading of the outermost iterator in which they are over
_characters_left = math.inf  # that all iterators together may still take as text
_num_reading = 0  # iterators that are being read, one in the other
_is_late = False  # the CPU seconds are over


def leave_at(end_at: float, read_s: float, num_characters: float) -> None:
    """Leave iterators at this end from now on.

    Args:
        end_at: CPU seconds of this process.
        read_s: CPU seconds for reading one, with all that are in it.
        num_characters: Of all iterators as text.
    """
    global _end_at, _read_s, _characters_left
    _end_at, _read_s, _characters_left = end_at, read_s, num_characters
    if math.isfinite(read_s):
        signal.signal(signal.SIGPROF, _on_time)


def iterator_text(iterator: Iterator, to_text: Text, error_text: Text) -> str:
    """`{"iterator": [items, ending]}`; the ending is null, the error that ended it, or the text "more" or "late"."""
    items: list[str] = []
    try:
        ending = _read(iterator, items, to_text, error_text)
    except _LateError:
        ending = '"late"'
    return f'{{"iterator": [[{", ".join(items)}], {ending}]}}'


class _LateError(BaseException):
    """The time for reading iterators is over."""


def _on_time(*_: object) -> None:
    global _is_late
    was_late, _is_late = _is_late, True
    if _num_reading and not was_late:
        raise _LateError


def _read(iterator: Iterator, items: list[str], to_text: Text, error_text: Text) -> str:
    """Put an iterator's items, as text, into the list; returns the ending as text, or raises _LateError."""
    global _num_reading
    has_timer = not _num_reading and not _is_late and math.isfinite(_read_s)
    _num_reading += 1
    try:
        if has_timer:
            left_s = min(_read_s, _end_at - time.process_time())
            signal.setitimer(signal.ITIMER_PROF, max(left_s, 1e-3))
        ending = _items_and_ending(iterator, items, to_text, error_text)
        return '"late"' if _is_late else ending  # it may have caught the error, and ended by that
    finally:
        _num_reading -= 1
        if has_timer:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _items_and_ending(iterator: Iterator, items: list[str], to_text: Text, error_text: Text) -> str:
    global _characters_left
    left = _characters_left
    try:
        for item in iterator:
            if _is_late:
                break
            if len(items) == _MAX_ITEMS:
                return '"more"'
            text = to_text(item)
            left -= len(text) + 2  # those of iterators in it are among them
            _characters_left = left
            if left < 0:
                return '"more"'
            items.append(text)
    except MemoryError:  # also that of an item which alone takes all: those before it count
        return '"more"'
    except Exception as error:  # untrusted: the program's own, which a test may expect
        return error_text(error)
    return "null"


def replayed(items: list, ending: Any, read_on: Callable[[], NoReturn] | None) -> Iterator:
    """Give the items, then raise what ended the iterator; ``read_on`` is called where it was left for its time."""
    yield from items
    if isinstance(ending, Exception):
        raise ending
    if ending == "late" and read_on is not None:
        read_on()
    if ending is not None:
        raise OverflowError("the answer's iterator has too many items")
