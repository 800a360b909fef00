"""The table of ways to refine: what a line counts as, and that the docs have what its command prints."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.refiners.table import Line, collect, lowest

REPOSITORY = Path(__file__).parents[3]


def line(reward: float, refined: float | None, *others: float, problem: int = 0, sample: int = 0) -> Line:
    return Line(
        cell="apps", problem=problem, sample=sample, reward=reward, refined=refined, verdict="", others=tuple(others)
    )


def test_the_best_of_several_other_answers_is_drawn_without_return() -> None:
    others = (1.0, -0.6, 0.2, -1.0, -0.6)
    one = line(-0.6, None, *others)
    for num in (1, 2, 4):
        drawn = [max(some) > -0.6 for some in itertools.combinations(others, num)]
        assert one.resampled(num) == pytest.approx(sum(drawn) / len(drawn))
    assert one.is_solved and not one.is_improved and not line(0.0, 0.0, 0.5).is_improved
    assert line(-1.0, -0.6, 0.5).is_improved and not line(-1.0, -0.6, 0.5).is_solved


def test_the_lowest_answer_of_a_problem_counts_once() -> None:
    lines = [line(0.1, None, 0.0, sample=0), line(-1, None, 0.0, sample=2), line(-1, None, 0.0, sample=1)]
    assert [one.sample for one in lowest([*lines, line(0.5, None, 0.0, problem=1)])] == [1, 0]


def test_a_check_is_taken_in_way_by_way(tmp_path: Path) -> None:
    said = {"key": "12_3_0", "reward": -0.6, "refined_reward": None, "verdict": "truncated", "others": [1.0, -1.0]}
    file = tmp_path / "check.jsonl"
    file.write_text("".join(json.dumps({"way": way, **said}) + "\n" for way in ("apps", "general")))
    (row,) = collect("first", file, "apps")
    assert Line.read(row) == Line(
        cell="first", problem=12, sample=3, reward=-0.6, refined=None, verdict="truncated", others=(1.0, -1.0)
    )


def test_the_docs_have_the_table_that_its_command_prints() -> None:
    command = [sys.executable, "-m", "experiments.refiners.table"]
    printed = subprocess.check_output(command, cwd=REPOSITORY, text=True).strip()
    assert len(printed.splitlines()) >= 14 and printed in (REPOSITORY / "docs" / "refiner.md").read_text()
