"""Problems that a small model seldom solves: a list of numbers goes through several steps, one after the other.

Generated as those of ``experiments.mini_apps``, with the same answer format and tests; a question names its steps, so
no two problems of a seed are alike.
"""

import random
from collections.abc import Iterator
from typing import Any

from experiments.mini_apps.draws import numbers
from experiments.mini_apps.family import Family, Parameters, fill
from experiments.mini_apps.generator import problems_of, run_reference

STEPS = [
    ("keep only the numbers that are more than $n", "[x for x in numbers if x > $n]"),
    ("keep only the numbers that can be divided by $n", "[x for x in numbers if x % $n == 0]"),
    ("multiply each number by $n", "[x * $n for x in numbers]"),
    ("add $n to each number", "[x + $n for x in numbers]"),
    ("replace each number by its remainder when divided by $n", "[x % $n for x in numbers]"),
    ("leave out the first $n numbers", "numbers[$n:]"),
    ("leave out the last $n numbers", "numbers[:-$n]"),
    ("sort them from the largest to the smallest", "sorted(numbers, reverse=True)"),
    ("reverse their order", "numbers[::-1]"),
    ("keep every second number, beginning with the first", "numbers[::2]"),
    ("add to each number its index, which begins with 0", "[x + i for i, x in enumerate(numbers)]"),
    ("replace each number by the sum of it and all before it", "[sum(numbers[: i + 1]) for i in range(len(numbers))]"),
    ("leave out numbers that stood before in the list", "list(dict.fromkeys(numbers))"),
]
"""The steps: the words of each, and its expression in Python."""
ENDS = [
    ("the list", "numbers"),
    ("the sum of the list", "sum(numbers)"),
    ("how many numbers are left", "len(numbers)"),
    ("the largest number minus the smallest, or 0 if none is left", "max(numbers) - min(numbers) if numbers else 0"),
]
"""The last steps: the words of what is returned, and its expression in Python."""


NUM_DRAWS, FEWEST = 20, 10
"""The number of inputs drawn, and the least number of different outputs that a problem's solution has on them."""


def generate(number: int, *, seed: int, length: int) -> Iterator[dict[str, Any]]:
    """Generate problems of so many steps, in the form of ``experiments.mini_apps.generator.generate``."""
    rng, seen = random.Random(f"chains:{seed}"), set[str]()
    while len(seen) < number:
        steps, (returned, value) = rng.sample(STEPS, length), rng.choice(ENDS)
        filled = [[fill(text, {"n": n}) for text in step] for step in steps for n in [rng.randint(2, 4)]]
        told = "; ".join(f"{index}. {words}" for index, (words, _) in enumerate(filled, 1))
        lines = ["def chain(numbers):", *(f"numbers = {code}" for _, code in filled), f"return {value}\n"]
        solution = "\n    ".join(lines)
        outputs = {str(run_reference(solution, "chain", draw(rng, {}))) for _ in range(NUM_DRAWS)}
        if told in seen or len(outputs) < FEWEST:
            continue
        family = Family(
            name=f"chain-{seed}-{len(seen)}",
            level="medium",
            kind="call",
            question="Write a function `chain(numbers)` that gets a list of integers and does these steps in order: "
            f"{told}. It returns {returned}.",
            solution=solution,
            draw=draw,
        )
        seen.add(told)
        yield from problems_of(family, seed, 1)


def draw(rng: random.Random, _: Parameters) -> list[list[int]]:
    """Return one test input."""
    return [numbers(rng, shortest=10, longest=14)]
