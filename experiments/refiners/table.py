"""Which way of asking beats a second sample? ``python -m experiments.refiners.table`` prints the table of the docs.

A line of ``experiments/results/refiners/cells.csv`` is a wrong answer and its refinement in a way: the cell, the
problem, the answer's number, its reward, the refinement's (empty: it failed, for the verdict), and the rewards of the
other answers to the problem. ``--collect CELL=FILE ...`` writes such lines from the JSON lines of ``online-refiner
check``.
"""

import argparse
import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from recipe.comparison import interval

CELLS = Path(__file__).parents[1] / "results" / "refiners" / "cells.csv"
HIGHEST = 1.0
BEST = [("again", "apps+feedback"), ("again", "hidden+feedback"), ("apps+feedback", "hidden+feedback")]
"""Ways that are taken together."""
COLUMNS = ("cell", "problem", "sample", "reward", "refined", "verdict", "others")


@dataclass(slots=True, frozen=True, kw_only=True)
class Line:
    """A wrong answer, refined."""

    cell: str
    problem: int
    sample: int
    reward: float
    refined: float | None
    verdict: str
    others: tuple[float, ...]

    @classmethod
    def read(cls, row: dict[str, str]) -> Self:
        """Return the line of a row of the table."""
        return cls(
            cell=row["cell"],
            problem=int(row["problem"]),
            sample=int(row["sample"]),
            reward=float(row["reward"]),
            refined=float(row["refined"]) if row["refined"] else None,
            verdict=row["verdict"],
            others=tuple(map(float, row["others"].split())),
        )

    @property
    def is_improved(self) -> bool:
        """Whether the refinement has a higher reward."""
        return self.refined is not None and self.refined > self.reward

    @property
    def is_solved(self) -> bool:
        """Whether another answer to the problem is right."""
        return max(self.others) >= HIGHEST

    def resampled(self, num: int) -> float:
        """Return how likely it is that one of so many other answers, drawn without return, has a higher reward."""
        worse = sum(other <= self.reward for other in self.others)
        return 1 - math.comb(worse, num) / math.comb(len(self.others), num)


def lowest(lines: Sequence[Line]) -> list[Line]:
    """Return of each problem's lines that of the lowest reward; of equal ones the first."""
    found: dict[int, Line] = {}
    for line in sorted(lines, key=lambda one: (one.reward, one.sample)):
        found.setdefault(line.problem, line)
    return list(found.values())


def share(values: Sequence[float], lines: Sequence[Line], form: str = ".1f") -> str:
    """Return a mean with its interval over problems, in percent."""
    if not lines:
        return ""
    problems = np.array([line.problem for line in lines])
    mean, low, high = (100 * one for one in interval(np.array(values, dtype=float), problems))
    return f"{mean:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


def difference(lines: Sequence[Line], num: int) -> str:
    """Return by how many points refining improves more answers than so many other answers do."""
    return share([line.is_improved - line.resampled(num) for line in lines], lines, "+.1f")


def best(lines: Sequence[Line], cells: Sequence[str]) -> list[Line]:
    """Return the answers that all of these cells have, with the refinement of the highest reward."""
    found: dict[tuple[int, int], list[Line]] = {}
    for line in lines:
        if line.cell in cells:
            found.setdefault((line.problem, line.sample), []).append(line)
    whole = [own for own in found.values() if len(own) == len(cells)]
    return [max(own, key=lambda line: -math.inf if line.refined is None else line.refined) for own in whole]


def row(name: str, own: Sequence[Line], num: int) -> str:
    """Return a row: refinements, the best of so many, against the best of as many other answers."""
    unsolved, solved = ([line for line in own if line.is_solved is so] for so in (False, True))
    columns = [
        name,
        str(len(own)),
        share([line.is_improved for line in own], own),
        share([line.resampled(num) for line in own], own),
        *(difference(some, num) for some in (own, unsolved, solved, lowest(own))),
    ]
    return f"| {' | '.join(columns)} |"


def describe(lines: Sequence[Line]) -> str:
    """Return the table, a row for each cell, and for several cells of which the best counts."""
    head = "way", "answers", "improved", "another answer", "difference", "nobody solved", "somebody did", "lowest"
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell in dict.fromkeys(line.cell for line in lines):
        rows.append(row(cell, [line for line in lines if line.cell == cell], 1))
    for cells in BEST:
        rows.append(row(f"best of {' and '.join(cells)}", best(lines, cells), len(cells)))
    return "\n".join(rows)


def collect(cell: str, path: Path, way: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a cell from the JSON lines of a check."""
    rows = []
    for said in map(json.loads, path.read_text().splitlines()):
        if way is not None and said["way"] != way:
            continue
        problem, sample, _ = said["key"].split("_")
        others = " ".join(f"{other:.4g}" for other in said["others"])
        refined = "" if said["refined_reward"] is None else f"{said['refined_reward']:.4g}"
        values = cell, problem, sample, f"{said['reward']:.4g}", refined, said["verdict"], others
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def main() -> None:
    """Print the table, or take in checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--collect", nargs="+", metavar="CELL=WAY=FILE", help="write the lines anew from these checks")
    arguments = parser.parse_args()
    if arguments.collect:
        rows = []
        for one in arguments.collect:
            cell, way, file = one.rsplit("=", 2)
            rows += collect(cell, Path(file), way)
        CELLS.parent.mkdir(parents=True, exist_ok=True)
        with CELLS.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with CELLS.open(newline="") as file:
        print(describe([Line.read(row) for row in csv.DictReader(file)]))


if __name__ == "__main__":
    main()
