"""Which prompt beats a second sample? ``python -m experiments.refiners.table`` prints the tables of the page.

The page and the lines lie in ``experiments/results/refiners``. A line of ``cells.csv``, ``unsolved.csv`` and
``stories.csv`` is a wrong answer and its refinement in a way: the cell, the problem, the answer's number, its reward,
the refinement's (empty: it failed, for the verdict), how many were drawn and how many of them were better, and the
rewards of other answers to the problem: the rest of the group, in ``unsolved.csv`` the four that no choice has seen.
``--collect CELL=WAY=FILE ... --into FILE`` writes such lines from ``all.jsonl`` of ``online-refiner check``.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq

from experiments.bootstrap import interval
from recipe.online_refiner.method.pairs import Verdict

RESULTS = Path(__file__).parents[1] / "results" / "refiners"
CELLS, UNSOLVED, STORIES = (RESULTS / f"{name}.csv" for name in ("cells", "unsolved", "stories"))
HIGHEST = 1.0
AGAIN = "again"
"""The variant that shows the task alone."""
COLUMNS = ("cell", "problem", "sample", "reward", "refined", "verdict", "drawn", "better", "others")


@dataclass(slots=True, frozen=True, kw_only=True)
class Line:
    """A wrong answer, refined."""

    cell: str
    problem: int
    sample: int
    reward: float
    refined: float | None
    verdict: str
    drawn: int = 1
    better: int = 0
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
            drawn=int(row["drawn"]),
            better=int(row["better"]),
            others=tuple(map(float, row["others"].split())),
        )

    def improved(self, num: int) -> float:
        """Return the probability that at least one of ``num`` drawn refinements has a higher reward."""
        return 1 - math.comb(self.drawn - self.better, num) / math.comb(self.drawn, num)

    def resampled(self, num: int) -> float:
        """Return the probability that at least one of ``num`` other answers, without replacement, scores higher."""
        worse = sum(other <= self.reward for other in self.others)
        return 1 - math.comb(worse, num) / math.comb(len(self.others), num)

    def pairs(self, *, is_solved: bool) -> Iterator[float]:
        """Yield the difference between refining and each other answer of the group.

        Whether the group is solved is decided without the compared answer: otherwise that answer would be wrong by
        definition in every unsolved group.
        """
        for index, other in enumerate(self.others):
            rest = self.others[:index] + self.others[index + 1 :]
            if (max(rest, default=-math.inf) >= HIGHEST) is is_solved:
                yield self.improved(1) - (other > self.reward)


def lowest(lines: Sequence[Line]) -> list[Line]:
    """Return each problem's line with the lowest reward; at a tie the first."""
    found: dict[int, Line] = {}
    for line in sorted(lines, key=lambda one: (one.reward, one.sample)):
        found.setdefault(line.problem, line)
    return list(found.values())


def share(values: Sequence[float], problems: Sequence[int], form: str = "+.1f") -> str:
    """Return a mean with its interval over problems, whose answers are alike, in percent."""
    _, places, sizes = np.unique(problems, return_inverse=True, return_counts=True)
    sums = np.column_stack((np.bincount(places, weights=values), sizes)).tolist()
    mean_of = lambda drawn: drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1)  # noqa: E731
    mean, low, high = (100 * one for one in interval(mean_of, sums))
    return f"{mean:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


def difference(lines: Sequence[Line], num: int) -> str:
    """Return by how many points ``num`` refinements improve more answers than ``num`` other answers do."""
    return share([line.improved(num) - line.resampled(num) for line in lines], [line.problem for line in lines])


def apart(lines: Sequence[Line], *, is_solved: bool) -> str:
    """Return the difference in groups that are solved (or not), where the compared answer itself does not count."""
    values = [(value, line.problem) for line in lines for value in line.pairs(is_solved=is_solved)]
    return share([value for value, _ in values], [problem for _, problem in values])


def describe_groups(lines: Sequence[Line]) -> str:
    """Return the table of whole groups, a row for each cell."""
    rows = []
    for cell, own in by_cell(lines).items():
        improved = share([line.improved(1) for line in own], [line.problem for line in own], ".1f")
        parts = difference(own, 1), *(apart(own, is_solved=so) for so in (False, True)), difference(lowest(own), 1)
        rows.append((cell, str(len(own)), improved, *parts))
    return table(("way", "answers", "improved", "difference", "nobody solved", "somebody did", "lowest"), rows)


def describe_unsolved(lines: Sequence[Line]) -> str:
    """Return the table of unsolved groups: a row for each cell, and one for the best of several refinements."""
    rows, cells = [], by_cell(lines)
    again = {(line.problem, line.sample): line.improved(1) for line in cells.get(AGAIN, [])}
    for cell, own in cells.items():
        problems = [line.problem for line in own]
        for num in sorted({1, min(line.drawn for line in own)}):
            improved = share([line.improved(num) for line in own], problems, ".1f")
            other = share([line.resampled(num) for line in own], problems, ".1f")
            paired = [line.improved(num) - again[line.problem, line.sample] for line in own] if num == 1 else None
            versus = share(paired, problems) if paired and cell != AGAIN else ""
            name = f"{cell}, best of {num}" if num > 1 else cell
            rows.append((name, improved, other, difference(own, num), versus))
    return table(("way", "improved", "other answers", "difference", f"less `{AGAIN}`"), rows)


def by_cell(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines of each cell."""
    return {cell: [line for line in lines if line.cell == cell] for cell in dict.fromkeys(line.cell for line in lines)}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)])


def collect(
    cell: str, path: Path, way: str | None = None, further: Mapping[int, Sequence[float]] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a cell from the JSON lines of a check.

    Args:
        cell: The name of the cell.
        path: The file of the lines.
        way: The variant whose lines are taken; None: all.
        further: The rewards, by problem, of answers that are compared in place of the group's.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [said for said in lines if way in (None, said["way"])]
    rows = []
    for said in lines:
        if said["verdict"] == Verdict.MAX_REWARD:
            continue
        group = [one for one in lines if (one["way"], one["row"]) == (said["way"], said["row"])]
        others = [one["reward"] for one in group if one is not said] if further is None else further[said["row"]]
        refined = "" if said["refined_reward"] is None else f"{said['refined_reward']:.4g}"
        row = cell, said["row"], said["sample"], f"{said['reward']:.4g}", refined, said["verdict"], said["num_samples"]
        rows.append(
            dict(zip(COLUMNS, (*row, said["num_better"], " ".join(f"{one:.4g}" for one in others)), strict=True))
        )
    return rows


def read(path: Path) -> list[Line]:
    """Return the lines of a file."""
    with path.open(newline="") as file:
        return [Line.read(row) for row in csv.DictReader(file)]


def main() -> None:
    """Print the tables, or take in checks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--collect", nargs="+", metavar="CELL=WAY=FILE", help="write the lines anew from these checks")
    parser.add_argument("--into", type=Path, default=CELLS, metavar="FILE", help="the lines' (default: cells.csv)")
    arguments = parser.parse_args()
    if arguments.collect:
        further = None
        if arguments.into == UNSOLVED:
            further = dict(enumerate(pq.read_table(UNSOLVED.with_suffix(".parquet"))["further"].to_pylist()))
        rows = []
        for one in arguments.collect:
            cell, way_and_file = one.split("=", 1)
            way, file = way_and_file.rsplit("=", 1)  # a way has keys: `hidden+temperature=1`
            rows += collect(cell, Path(file), way, further)
        with arguments.into.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(describe_groups(read(CELLS)))
    print(f"\n{describe_unsolved(read(UNSOLVED))}")
    print(f"\n{describe_groups(read(STORIES))}")


if __name__ == "__main__":
    main()
