"""Mistakes of language models, applied to a right program: what the base model learns to write and to correct."""

import random
import re
from collections.abc import Callable

from recipe.lab.problems import VALUES

OPERATORS = {"**": "*", "*": "+", "+": "-", "%": "//", "==": "!=", "max": "min", "sum": "max"}
_OPERATOR = re.compile("|".join(map(re.escape, OPERATORS)))


def answer(program: str) -> str:
    """Return a program as a model's answer."""
    return f"```python\n{program}```"


def _other_number(rng: random.Random, program: str) -> str:
    head, number, tail = _last(r"\d+", program)
    return head + str(rng.choice([value for value in VALUES if value != int(number)])) + tail


def _other_operator(rng: random.Random, program: str) -> str:
    *lines, last = program.splitlines()
    last = _OPERATOR.sub(lambda found: OPERATORS[found.group()], last, count=1)
    return "\n".join([*lines, last]) + "\n"


def _no_result(rng: random.Random, program: str) -> str:
    return program.replace("return ", "").replace("print(", "(")


def _unknown_name(rng: random.Random, program: str) -> str:
    *lines, last = program.splitlines()
    return "\n".join([*lines, re.sub(r"\b(x|a|numbers)\b", rng.choice(["y", "n", "value"]), last, count=1)]) + "\n"


def _open_bracket(rng: random.Random, program: str) -> str:
    head, _, tail = _last(r"\)", program)
    return head + tail


def _stutter(rng: random.Random, program: str) -> str:
    head, number, tail = _last(r"\d+", program)
    return head + " ".join([number] * rng.randint(2, 6)) + tail


MISTAKES: dict[str, tuple[Callable[[random.Random, str], str], float]] = {
    "other number": (_other_number, -0.3),
    "other operator": (_other_operator, -0.3),
    "no result": (_no_result, -0.3),
    "unknown name": (_unknown_name, -0.6),
    "open bracket": (_open_bracket, -1.0),
    "stutter": (_stutter, -1.0),
}
"""Name: how it is made, and the reward (Eq. 7) that the program gets if no test passes by chance."""


def spoil(rng: random.Random, program: str) -> tuple[str, float]:
    """Return a program with one mistake, and its reward."""
    make, reward = rng.choice(list(MISTAKES.values()))
    return make(rng, program), reward


def _last(pattern: str, text: str) -> tuple[str, str, str]:
    """Return what is before, in, and after the last match."""
    found = list(re.finditer(pattern, text))[-1]
    return text[: found.start()], found.group(), text[found.end() :]
