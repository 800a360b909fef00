"""Lists of empty ones, in a number that tests may ask for."""

from collections.abc import Callable
from typing import Any

from reward.judge.changes import Answer
from reward.judge.trials import Differing

Fill = Callable[[], Any]
_MAX_ITEMS = 10_000


def _as_many_as(number_of: Callable[[list[Any]], Any]) -> Callable[[Fill], Answer]:
    def of_fill(fill: Fill) -> Answer:
        def answer(*positional: Any, **keywords: Any) -> Any:
            try:
                number = number_of([*positional, *keywords.values()])
            except (TypeError, LookupError):  # it has no length, or no such item
                number = None
            is_number = isinstance(number, int) and 0 <= number <= _MAX_ITEMS
            return [fill() for _ in range(number)] if is_number else Differing(truth=False)

        return answer

    return of_fill


EMPTY_LISTS: dict[str, Callable[[Fill], Answer]] = {
    "[] for each item of its first argument": _as_many_as(lambda given: len(given[0])),
    "[] for each item of its first argument's first": _as_many_as(lambda given: len(given[0][0])),
    "[] for each item of its second argument": _as_many_as(lambda given: len(given[1])),
    "as many [] as its first argument says": _as_many_as(lambda given: given[0]),
    "as many [] as its second argument says": _as_many_as(lambda given: given[1]),
    "two []": _as_many_as(lambda _: 2),
    "three []": _as_many_as(lambda _: 3),
    "four []": _as_many_as(lambda _: 4),
}
"""By what they return: answers, by what stands in place of each empty list."""
