"""Mistakes of language models, applied to a right program: what the base model learns to write and to correct."""

import random
import re
from collections.abc import Callable

from recipe.lab.problems import VALUES

OPERATORS = {"**": "*", "*": "+", "+": "-", "%": "//", "==": "!=", "<=": "<", ">": ">=", "max": "min", "sum": "max"}
KNOWN = {"def", "return", "print", "int", "input", "max", "min", "sum", "len", "str", "for", "in", "if", "else"}
"""Names that are never mistaken."""
NUM_MISTAKES = (1, 2, 3)
NUM_MISTAKES_WEIGHTS = (50, 30, 20)
_OPERATOR = re.compile("|".join(map(re.escape, sorted(OPERATORS, key=len, reverse=True))))
_NAME = re.compile(r"\b[a-z_]+\b(?!\()")
_ATTEMPTS = 100


def answer(program: str) -> str:
    """Return a program as a model's answer."""
    return f"```python\n{program}```"


def _other_number(rng: random.Random, program: str) -> str:
    head, number, tail = _one(rng, r"\d+", program)
    return head + str(rng.choice(VALUES)) + tail if number else program


def _other_operator(rng: random.Random, program: str) -> str:
    head, operator, tail = _one(rng, _OPERATOR.pattern, program)
    return head + OPERATORS[operator] + tail if operator else program


def _no_result(rng: random.Random, program: str) -> str:
    return program.replace("return ", "").replace("print(", "(")


def _unknown_name(rng: random.Random, program: str) -> str:
    first, *lines = program.splitlines()
    uses = [found for found in _NAME.finditer("\n".join(lines)) if found.group() not in KNOWN]
    if not uses:
        return program
    use, text = rng.choice(uses), "\n".join(lines)
    return f"{first}\n{text[: use.start()]}{rng.choice(['y', 'k', 'val'])}{text[use.end() :]}\n"


def _open_bracket(rng: random.Random, program: str) -> str:
    head, bracket, tail = _one(rng, r"\)", program)
    return head + tail if bracket else program


def _stutter(rng: random.Random, program: str) -> str:
    head, number, tail = _one(rng, r"\d+", program)
    return head + " ".join([number] * rng.randint(2, 4)) + tail if number else program


MISTAKES: dict[str, tuple[Callable[[random.Random, str], str], float]] = {
    "other number": (_other_number, -0.3),
    "other operator": (_other_operator, -0.3),
    "no result": (_no_result, -0.3),
    "unknown name": (_unknown_name, -0.6),
    "open bracket": (_open_bracket, -1.0),
    "stutter": (_stutter, -1.0),
}
"""Name: how it is made, and the reward (Eq. 7) that the program gets if no test passes by chance."""
WEIGHTS = (30, 25, 10, 20, 8, 7)
"""How often each is made: most mistakes leave room for worse ones."""


def spoil(rng: random.Random, program: str) -> tuple[str, float]:
    """Return a program with one mistake more, and the reward of that mistake alone."""
    for _ in range(_ATTEMPTS):
        make, reward = rng.choices(list(MISTAKES.values()), WEIGHTS)[0]
        spoilt = make(rng, program)
        if spoilt != program:
            return spoilt, reward
    raise ValueError(f"no mistake fits into {program!r}")


def draw_mistakes(rng: random.Random, program: str) -> list[tuple[str, float]]:
    """Return a right program, the same with one mistake more and so on, and their rewards; each has those before it."""
    steps = [(program, 1.0)]
    for _ in range(rng.choices(NUM_MISTAKES, NUM_MISTAKES_WEIGHTS)[0]):
        spoilt, reward = spoil(rng, steps[-1][0])
        steps.append((spoilt, min(reward, steps[-1][1])))
    return steps


def _one(rng: random.Random, pattern: str, text: str) -> tuple[str, str, str]:
    """Return what is before, in, and after one of the matches behind the first line; or all, nothing, nothing."""
    start = text.index("\n") if text.startswith("def ") else 0
    found = [match for match in re.finditer(pattern, text) if match.start() >= start]
    if not found:
        return text, "", ""
    match = rng.choice(found)
    return text[: match.start()], match.group(), text[match.end() :]
