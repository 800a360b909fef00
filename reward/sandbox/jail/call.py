"""A call of a function: its arguments from text, and as text what came of it."""

from collections import deque
from collections.abc import Callable
from operator import is_not
from typing import Any

from reward.sandbox.jail.values import CONTAINERS, Known, begin_call, contents_text, error_text, from_text, to_text

_NUMBERED = (*CONTAINERS, Known)


def outcome_of_call(
    function: Callable[..., Any], arguments: str, *, is_tested: bool, iterators_end: tuple[float, float, int]
) -> tuple[str, BaseException | None]:
    """Call the function; returns what came of it as text, and the exception that it raised, if any.

    The text is `["value", value]`, `["not plain", its type]`, `["raised", error]`, or nothing where the run must end by
    the exception alone. Test code may look at more than the value: if `is_tested`, an exception is told, and as a third
    item what the call changed in place: `[[number, content], ...]` of the containers in the arguments, which are
    numbered in the order of the text. They themselves, wherever they stand now, are `{"known": number}`. Iterators are
    left at the end that is given for them, see `begin_call`.
    """
    positional, keywords = from_text(arguments, Known)
    containers: list[Any] = []
    if is_tested:
        positional = [_with_containers(value, containers) for value in positional]
        keywords = {name: _with_containers(value, containers) for name, value in keywords.items()}
    held = [_held(container) for container in containers]
    begin_call(containers, iterators_end)
    try:
        value = function(*positional, **keywords)
    except BaseException as error:  # untrusted
        if is_tested and isinstance(error, (Exception, SystemExit)):
            changes = _changes_text(containers, held)
            text = "" if changes is None else f'["raised", {error_text(error)}{changes}]'
            return text, error
        return "", error
    try:
        text = to_text(value)
    except Exception as error:  # untrusted: cycles, depth, foreign types and their raising methods
        return to_text(["not plain", f"{type(value).__name__}: {type(error).__name__}"]), None
    changes = _changes_text(containers, held)
    if changes is None:
        return to_text(["not plain", type(value).__name__]), None
    return f'["value", {text}{changes}]', None


def _with_containers(value: Any, containers: list[Any]) -> Any:
    """The value with the containers that it has by number; those in it are added, outer ones first."""
    if isinstance(value, Known):
        return containers[value.number]
    if not isinstance(value, CONTAINERS):
        return value
    number = len(containers)
    containers.append(value)
    if isinstance(value, tuple):
        containers[number] = value = tuple([_with_containers(item, containers) for item in value])
    elif isinstance(value, (list, deque)):
        for index, item in enumerate(value):
            if isinstance(item, _NUMBERED):
                value[index] = _with_containers(item, containers)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, _NUMBERED):
                dict.__setitem__(value, key, _with_containers(item, containers))
    return value


def _held(container: Any) -> list[Any]:
    """The very objects in a container; of a bytearray numbers, of a dict keys and values."""
    return [*container, *container.values()] if isinstance(container, dict) else list(container)


def _changes_text(containers: list[Any], held: list[list[Any]]) -> str | None:
    """What containers hold that held something else before, as a further item of a list; None: no text can tell."""
    try:
        changes = [
            f"[{number}, {contents_text(container)}]"
            for number, (container, before) in enumerate(zip(containers, held, strict=True))
            if len(after := _held(container)) != len(before) or any(map(is_not, after, before))
        ]
    except Exception:  # untrusted: what it put there may be of any type
        return None
    return f", [{', '.join(changes)}]" if changes else ""
