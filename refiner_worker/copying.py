"""How much of a refinement is copied from a text that the policy never saw."""

from collections.abc import Iterable, Sequence

RUN = 8
"""Tokens in a row that two texts seldom have by chance."""


def num_copied(answer: Sequence[int], sources: Iterable[Sequence[int]], known: Iterable[Sequence[int]]) -> int:
    """Return how many tokens of an answer stand in runs of RUN tokens that a source has.

    Args:
        answer: Token ids of a'.
        sources: Texts that only the refiner was shown: a solution, a sibling.
        known: Texts that are no secret, question and response: what also stands there is not copied.
    """
    new = _runs(sources) - _runs(known)
    starts = [start for start, run in enumerate(_runs_of(answer)) if run in new]
    return len({place for start in starts for place in range(start, start + RUN)})


def _runs(texts: Iterable[Sequence[int]]) -> set[tuple[int, ...]]:
    return {run for text in texts for run in _runs_of(text)}


def _runs_of(text: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(text[start : start + RUN]) for start in range(len(text) - RUN + 1)]
