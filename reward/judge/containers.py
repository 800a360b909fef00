"""Arguments of test code's: what the answer changes in place, or hands back, is the very object of the test code."""

import copy
from collections import deque
from typing import Any

from reward.sandbox.jail.values import CONTAINERS, Known, arguments_text

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def numbered_arguments(positional: tuple, keywords: dict[str, Any]) -> tuple[str, dict[int, Any]]:
    """Arguments as text, and the containers in them by the numbers that the answer's side gives them too.

    What stands there more than once is written once, and then by its number. Errors are those of `to_text`.
    """
    numbers: dict[int, int] = {}
    containers: dict[int, Any] = {}

    def number(value: Any) -> bool:
        """Number what is in a value; returns whether something has a number already."""
        if not isinstance(value, CONTAINERS):
            return False
        if id(value) in numbers:
            return True
        numbers[id(value)] = len(containers)
        containers[len(containers)] = value
        return any([number(item) for item in _items(value)])

    values = [*positional, *keywords.values()]
    if any([number(value) for value in values]):
        seen: set[int] = set()
        values = [_with_numbers(value, numbers, seen) for value in values]
    rest = values[len(positional) :]
    return arguments_text(values[: len(positional)], dict(zip(keywords, rest, strict=True))), containers


def fill(containers: dict[int, Any], changes: list) -> None:
    """Make containers in place what the answer made of them; `changes` has pairs of a number and a new container.

    An item that a plain one at its place equals stays as it is: numpy's numbers come back as plain ones.

    Raises:
        LookupError, TypeError, ValueError: that is no change of these containers; the answer's side is not trusted.
    """
    for number, new in changes:
        old = containers[number]
        if isinstance(old, list) and isinstance(new, list):
            old[:] = [_kept(*pair) for pair in zip(old, new, strict=False)] + new[len(old) :]
        elif isinstance(old, dict) and isinstance(new, dict):
            items = {key: _kept(old[key], item) if key in old else item for key, item in new.items()}
            old.clear()
            for key, item in items.items():  # Counter.update adds
                old[key] = item
        elif isinstance(old, set) and isinstance(new, set):
            old.clear()
            old.update(new)
        elif isinstance(old, bytearray) and isinstance(new, bytearray):
            old[:] = new
        elif isinstance(old, deque) and isinstance(new, deque):
            old.clear()
            old.extend(new)
        else:
            raise TypeError(f"{type(old).__name__} cannot be changed to {type(new).__name__}")


def _kept(old: Any, new: Any) -> Any:
    is_foreign = not isinstance(old, CONTAINERS) and type(old) not in _PLAIN
    return old if is_foreign and type(new) in _PLAIN and old == new else new


def _items(value: Any) -> list[Any]:
    """What is in a container that may be, or hold, a container."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, deque)) else []


def _with_numbers(value: Any, numbers: dict[int, int], seen: set[int]) -> Any:
    """A copy of the value, with numbers for containers that have been seen."""
    if not isinstance(value, CONTAINERS):
        return value
    if id(value) in seen:
        return Known(numbers[id(value)])
    seen.add(id(value))
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, item in value.items():
            dict.__setitem__(copied, key, _with_numbers(item, numbers, seen))
        return copied
    if isinstance(value, (list, tuple, deque)):
        items = [_with_numbers(item, numbers, seen) for item in value]
        if isinstance(value, deque):
            return deque(items, value.maxlen)
        return tuple(items) if isinstance(value, tuple) else items
    return value
