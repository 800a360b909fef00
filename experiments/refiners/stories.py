"""Word problems whose answer is a number: text, not a program. ``python -m experiments.refiners.stories FILE``.

A story has a beginning and two steps; all numbers are whole and above 0. 64 of them are written in verl's schema,
for ``reward.math``.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo")
THINGS = ("apples", "books", "cards", "eggs", "pencils", "shells", "stamps", "tickets")
STEPS = (
    ("Then {name} gets {n} more {things}.", lambda have, n: have + n),
    ("{name} gives {n} {things} to a friend.", lambda have, n: have - n),
    ("A week later {name} has {n} times as many.", lambda have, n: have * n if n < 5 else 0),
    ("{name} shares all {things} equally among {n} boxes, and keeps one box.", lambda have, n: have / n),
    ("{name} finds {n} bags with {n} {things} each.", lambda have, n: have + n * n),
    ("{name} sells every {n}th part of the {things}.", lambda have, n: have - have / n),
)
"""The events of a story, each with a function that returns what is left; 0 means that the event does not fit."""
END = "How many {things} does {name} have now? Write #### and the number, nothing else."
NUM_STORIES, NUM_STEPS = 64, 2


def generate(number: int, *, seed: int) -> Iterator[tuple[str, int]]:
    """Generate stories that differ, with their answers."""
    rng, seen = random.Random(f"stories:{seed}"), set[str]()
    while len(seen) < number:
        words = {"name": rng.choice(NAMES), "things": rng.choice(THINGS)}
        have: float = rng.randint(10, 60)
        told = [f"{words['name']} has {have} {words['things']}."]
        for sentence, change in rng.sample(STEPS, NUM_STEPS):
            n = rng.randint(2, 9)
            have = change(have, n)
            told.append(sentence.format(n=n, **words))
            if have != int(have) or have < 1:
                break
        else:
            story = " ".join([*told, END.format(**words)])
            if story not in seen:
                seen.add(story)
                yield story, int(have)


def row_of(story: str, answer: int, index: int) -> dict[str, Any]:
    """Build a row in verl's schema."""
    return {
        "data_source": "stories",
        "prompt": [{"role": "user", "content": story}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(answer)},
        "extra_info": {"index": index},
    }


if __name__ == "__main__":
    rows = [row_of(*story, index) for index, story in enumerate(generate(NUM_STORIES, seed=0))]
    pq.write_table(pa.Table.from_pylist(rows), Path(sys.argv[1]), compression="zstd")
