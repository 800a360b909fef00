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


def _copied(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """A copy of a container, and of those in it."""
    copies = {} if copies is None else copies
    if id(value) in copies:
        return copies[id(value)]
    if type(value) is tuple:
        return tuple([_copied(item, copies) for item in value])
    if not isinstance(value, _CONTAINERS):
        return value
    copied: Any = copy(value)
    copies[id(value)] = copied
    if isinstance(value, dict):
        for key, item in value.items():
            copied[key] = _copied(item, copies)
    elif isinstance(value, (list, deque)):
        for index, item in enumerate(value):
            copied[index] = _copied(item, copies)
    return copied


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


def _cut(value: Any) -> bool:
    if isinstance(value, (list, deque)) and value:
        for _ in range(len(value) - 1):
            value.pop()
        return True
    if isinstance(value, (dict, set)) and value:
        for key in list(value)[1:]:
            value.pop(key) if isinstance(value, dict) else value.remove(key)
        return True
    return False


def _cut_all(value: Any) -> bool:
    return any([_cut(container) for container in _with_containers_within(value)])


def _overwrite_all(value: Any) -> bool:
    """Keep the lengths of lists and the keys of dictionaries."""
    return any([_overwrite_leaves(container) for container in _with_containers_within(value)])


def _cut_and_overwrite(value: Any) -> bool:
    return any([_cut(value), _overwrite_all(value)])


def _cut_and_overwrite_all(value: Any) -> bool:
    return any([_cut_all(value), _overwrite_all(value)])


def _with_containers_within(value: Any) -> list[Any]:
    """The value, and what is in it, of all that may hold items."""
    found = [value]
    known = {id(value)}
    for holder in found:
        items = holder.values() if isinstance(holder, dict) else holder
        for item in items if isinstance(holder, (dict, list, tuple, deque)) else ():
            if isinstance(item, (*_CONTAINERS, tuple)) and id(item) not in known:
                known.add(id(item))
                found.append(item)
    return found


def _overwrite_leaves(value: Any) -> bool:
    if not isinstance(value, (dict, list, deque)):
        return False
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        value[key] = _with_other_leaves(value[key])
    return bool(keys)


def _with_other_leaves(item: Any) -> Any:
    if type(item) is tuple:
        return tuple([_with_other_leaves(inner) for inner in item])
    return type(item)(1) if isinstance(item, (int, float)) else "x" if isinstance(item, str) else item


def _instead(item: Any) -> Any:
    return "x" if isinstance(item, str) else 1


CHANGES: dict[str, Change] = {
    "empties its arguments": _empty,
    "empties what is in its arguments": _empty_items,
    "overwrites its arguments": _overwrite,
}
"""By what they do: changes of one argument, if that can be changed so."""
FURTHER_CHANGES: dict[str, Change] = {
    "cuts its arguments to their first item": _cut,
    "overwrites what is in its arguments": _overwrite_all,
    "cuts its arguments to their first item and overwrites that": _cut_and_overwrite,
    "cuts its arguments, and what is in them, to their first items and overwrites these": _cut_and_overwrite_all,
}
"""The same, which only tests see that see one of these."""
