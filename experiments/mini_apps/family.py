"""Problem families: a template, the values that fill it, and a function that draws test inputs."""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any, Literal

Level = Literal["easy", "medium"]
Kind = Literal["call", "stdin"]
Split = Literal["train", "val"]
Parameters = dict[str, Any]

LEVELS: tuple[Level, ...] = ("easy", "medium")


@dataclass(slots=True, kw_only=True, frozen=True)
class Family:
    """Problems that differ in their parameters only.

    Example: question "Write a function `add_$c(x)` that returns x plus $c.", solution "def add_$c(x): return x + $c",
    values {"c": range(2, 12)}, draw `lambda rng, p: [rng.randint(-50, 50)]` makes ten problems.
    """

    name: str  # unique; the first part of its problems' ids
    level: Level  # difficulty
    kind: Kind  # call: a function is called; stdin: a program reads standard input and prints
    split: Split = "train"  # where all its problems go, so that validation families are unseen in training
    question: str  # template ($name marks a parameter) in plain words, without the answer format
    solution: str  # template of the reference solution; call: the first line is the def
    draw: Callable[[random.Random, Parameters], Any]  # one test input: list of arguments, or text of standard input
    values: dict[str, Sequence[Any]] = field(default_factory=dict)  # choices of every parameter

    def variants(self) -> list[Parameters]:
        """Every combination of parameter values, in a fixed order: as many problems as the family can make."""
        return [dict(zip(self.values, chosen, strict=True)) for chosen in itertools.product(*self.values.values())]


def fill(template: str, parameters: Parameters) -> str:
    """Fill a template; KeyError if it names a parameter that the family does not have."""
    return Template(template).substitute(parameters)
