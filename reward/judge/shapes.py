"""Values made of one thing only, in a shape that tests may look at."""

from collections.abc import Callable
from typing import Any

from reward.judge.changes import Answer
from reward.judge.trials import Differing

Fill = Callable[[], Any]


def _as_long_as_given(fill: Fill) -> Answer:
    def answer(*positional: Any, **keywords: Any) -> Any:
        given = [*positional, *keywords.values()]
        return _filled(given[0], fill) if given and isinstance(given[0], (list, tuple)) else Differing(truth=False)

    return answer


def _as_many_as_given(fill: Fill) -> Answer:
    def answer(*positional: Any, **keywords: Any) -> Any:
        given = [*positional, *keywords.values()]
        return [fill() for _ in given[0]] if given and isinstance(given[0], (list, tuple)) else Differing(truth=False)

    return answer


def _filled(value: Any, fill: Fill) -> Any:
    return [_filled(item, fill) for item in value] if isinstance(value, (list, tuple)) else fill()


def _tuple_of(length: int) -> Callable[[Fill], Answer]:
    return lambda fill: lambda *_, **__: tuple([fill() for _ in range(length)])


NAN = float("nan")
SHAPES: dict[str, tuple[Callable[[Fill], Answer], Fill]] = {
    "nan for each item of its first argument": (_as_long_as_given, lambda: NAN),
    "a tuple of two nan": (_tuple_of(2), lambda: NAN),
    "a tuple of three nan": (_tuple_of(3), lambda: NAN),
    "[] for each item of its first argument": (_as_many_as_given, list),
}
"""By what they return: answers, by what fills the shape, and what fills it."""
