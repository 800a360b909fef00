"""Answers that change their arguments: tests that compute what they expect after the call may then expect anything."""

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any

from reward.judge.trials import Differing

Answer = Callable[..., Any]
Change = Callable[[Any], bool]
_CONTAINERS = (list, dict, set, bytearray, deque)


def changing(change: Change, value_of: Callable[[Any], Any], *, in_copies: bool = False) -> Answer:
    """Change all arguments that can be, and return what `value_of` makes of the first of these."""

    def answer(*positional: Any, **keywords: Any) -> Any:
        given = [*positional, *keywords.values()]
        given = [_copied(value) for value in given] if in_copies else given
        changed = [value for value in given if change(value)]
        return value_of(changed[0]) if changed else Differing(truth=False)

    return answer


def _copied(value: Any) -> Any:
    """A copy of a container, and of those in it."""
    if type(value) in (list, tuple):
        return type(value)(copy(item) if isinstance(item, _CONTAINERS) else item for item in value)
    if isinstance(value, dict):
        copied = copy(value)
        for key, item in value.items():
            copied[key] = copy(item) if isinstance(item, _CONTAINERS) else item
        return copied
    return copy(value) if isinstance(value, _CONTAINERS) else value


def _empty(value: Any) -> bool:
    if isinstance(value, _CONTAINERS):
        value.clear()
        return True
    return False


def _empty_items(value: Any) -> bool:
    if isinstance(value, dict):
        return any([_empty(item) for item in value.values()])
    return isinstance(value, (list, tuple, deque)) and any([_empty(item) for item in value])


def _overwrite(value: Any) -> bool:
    if isinstance(value, list) and value:
        value[:] = [_instead(value[0])]
        return True
    if isinstance(value, dict) and value:
        for key, item in value.items():
            value[key] = _instead(item)
        return True
    return False


def _instead(item: Any) -> Any:
    return "x" if isinstance(item, str) else 1


CHANGES: dict[str, Change] = {
    "empties its arguments": _empty,
    "empties what is in its arguments": _empty_items,
    "overwrites its arguments": _overwrite,
}
"""By what they do: changes of one argument, if that can be changed so."""
