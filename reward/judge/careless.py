"""Answers that do not look at what they are asked, and which of them pass all tests."""

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from time import process_time
from typing import Any

from reward.judge.trials import ENOUGH_S, Trial

_CARELESS_S = ENOUGH_S / 2  # CPU seconds for all trials of careless answers
_MAY_BE_RIGHT = {"nan": r"(?i)\bnan\b|isnan", "inf": r"(?i)\binf\b|isinf", "-inf": r"(?i)\binf\b|isinf"}
_CONTAINERS = (list, dict, set, bytearray, deque)


class _UnlikeAll:
    """Cannot be compared, nor be taken for true or false: tests that do so look at the value."""

    def _refuse(self, *_: object) -> Any:
        raise TypeError("neither true nor false")

    __eq__ = __ne__ = __bool__ = _refuse


def _returning(value: Any) -> Callable[..., Any]:
    """Return the value, which cannot be compared."""
    kind = type(value)
    unlike_all = type(kind.__name__, (_UnlikeAll, kind), {})(value)
    return lambda *_, **__: unlike_all


def _containers(given: Iterable[Any]) -> list[Any]:
    return [value for value in given if isinstance(value, _CONTAINERS)]


def _emptying(returned: Callable[[Any], Any], *positional: Any, **keywords: Any) -> Any:
    """Empty all arguments and return what the function makes of the first that could be emptied."""
    containers = _containers([*positional, *keywords.values()])
    for container in containers:
        container.clear()
    return returned(containers[0]) if containers else _UnlikeAll()


def _emptying_copies(returned: Callable[[Any], Any], *positional: Any, **keywords: Any) -> Any:
    """Return the same, with the arguments left as they are."""
    return _emptying(returned, *map(copy, _containers([*positional, *keywords.values()])))


def _overwrite(*positional: Any, **keywords: Any) -> Any:
    """Pass tests that compare what is returned with what they make of the changed argument."""
    for given in _containers([*positional, *keywords.values()]):
        if isinstance(given, list):
            given[:] = [0.5]
            return given
    return _UnlikeAll()


_PLAIN = {
    "an empty list": [],
    "an empty dict": {},
    "an empty tuple": (),
    "an empty set": set(),
    "an empty text": "",
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
}
_CARELESS: dict[str, Callable[..., Any]] = {
    **{f"returns {name}": _returning(value) for name, value in _PLAIN.items()},
    "overwrites its argument and returns it": _overwrite,
}
"""By what they do: answers that no test of a problem may pass together with all others."""
_EMPTYING: dict[str, Callable[[Any], Any]] = {
    "empties its arguments and returns the first": lambda first: first,
    "empties its arguments and returns 0": lambda _: 0,
    "empties its arguments and returns ''": lambda _: "",
}
"""Such answers too, unless the test passes without the one or the other; by what they return, for `_emptying`."""


def careless_answers(tests: Sequence[str], fn_name: str | None) -> Iterator[str]:
    """What careless answers do that pass all tests, but neither where another that is as bad shows that to be right."""
    end = process_time() + _CARELESS_S

    def passes_all(answer: Callable[..., Any]) -> bool:
        return all(Trial(answer, test, fn_name, end - process_time()).has_passed for test in tests)

    wanted = {name for name, pattern in _MAY_BE_RIGHT.items() if any(re.search(pattern, test) for test in tests)}
    for what, answer in _CARELESS.items():
        if what.removeprefix("returns ") not in wanted and passes_all(answer) and not passes_all(_give_unlike):
            yield what
    for what, returned in _EMPTYING.items():
        if (
            passes_all(functools.partial(_emptying, returned))
            and not passes_all(functools.partial(_emptying, _give_unlike))
            and not passes_all(functools.partial(_emptying_copies, returned))
        ):
            yield what


def _give_unlike(*_: Any, **__: Any) -> _UnlikeAll:
    return _UnlikeAll()
