"""Word problems of one or two steps in GSM8K's format, generated here: for a machine without a download."""

import random
from collections.abc import Callable, Iterator

from recipe.data_preparation.fields import Record

MAX_NUMBER = 10_000
_NAMES = ["Ada", "Ben", "Carla", "Deniz", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun"]
_THINGS = ["apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "stamps"]

Template = Callable[[random.Random, str, str], tuple[str, str, int]]
"""(draws, a name, things) -> question, steps and answer"""


def _gets(rng: random.Random, who: str, things: str) -> tuple[str, str, int]:
    a, b = rng.randint(2, 20), rng.randint(2, 20)
    return f"{who} has {a} {things} and gets {b} more. How many {things} are there now?", f"{a} + {b} = {a + b}", a + b


def _gives(rng: random.Random, who: str, things: str) -> tuple[str, str, int]:
    a = rng.randint(5, 30)
    b = rng.randint(1, a - 1)
    return f"{who} has {a} {things} and gives {b} away. How many {things} are left?", f"{a} - {b} = {a - b}", a - b


def _boxes(rng: random.Random, who: str, things: str) -> tuple[str, str, int]:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return f"{who} fills {a} boxes with {b} {things} each. How many {things} is that?", f"{a} * {b} = {a * b}", a * b


def _shares(rng: random.Random, who: str, things: str) -> tuple[str, str, int]:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    question = f"{who} shares {a * b} {things} equally among {a} friends. How many {things} does each friend get?"
    return question, f"{a * b} / {a} = {b}", b


def _buys(rng: random.Random, who: str, things: str) -> tuple[str, str, int]:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    paid = a * b + rng.randint(1, 20)
    question = f"{who} buys {a} {things} at {b} dollars each and pays with {paid} dollars. How many dollars come back?"
    return question, f"{a} * {b} = {a * b}\n{paid} - {a * b} = {paid - a * b}", paid - a * b


_TEMPLATES: tuple[Template, ...] = (_gets, _gives, _boxes, _shares, _buys)


def word_problems(number: int, seed: int) -> Iterator[Record]:
    """Yield so many different problems, the same for the same seed, the templates in turn.

    Raises:
        ValueError: ``number`` is not between 1 and MAX_NUMBER.
    """
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"--generated {number}: give 1 to {MAX_NUMBER}")
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < number:
        template = _TEMPLATES[len(seen) % len(_TEMPLATES)]
        question, steps, answer = template(rng, rng.choice(_NAMES), rng.choice(_THINGS))
        if question not in seen:
            seen.add(question)
            yield {"question": question, "answer": f"{steps}\n#### {answer}"}
