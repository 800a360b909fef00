"""The tables of ways to refine: what a line counts as, and that their page has what their command prints."""

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.mini_apps.generator import run_reference
from experiments.refiners import chains
from experiments.refiners.table import RESULTS, Line, collect, lowest

REPOSITORY = Path(__file__).parents[3]


def line(reward: float, *others: float, problem: int = 0, sample: int = 0, drawn: int = 1, better: int = 0) -> Line:
    own = {"cell": "apps", "problem": problem, "sample": sample, "drawn": drawn, "better": better}
    return Line(reward=reward, refined=None, verdict="", others=tuple(others), **own)


def test_the_best_of_several_answers_and_of_several_refinements_is_drawn_without_return() -> None:
    others = (1.0, -0.6, 0.2, -1.0, -0.6)
    one = line(-0.6, *others, drawn=5, better=2)
    for num in (1, 2, 4):
        drawn = [max(some) > -0.6 for some in itertools.combinations(others, num)]
        assert one.resampled(num) == one.improved(num) == pytest.approx(sum(drawn) / len(drawn))


def test_an_answer_that_is_compared_does_not_choose_its_group() -> None:
    """Answers right by chance, and refinements as often, differ in no group; by choice of all answers they would."""
    rng, found = random.Random(0), {False: list[float](), True: list[float]()}
    for _ in range(20_000):
        own, *others = (float(rng.random() < 0.3) for _ in range(4))
        one = line(own, *others, better=int(rng.random() < 0.3))
        for is_solved, values in found.items():
            values += one.pairs(is_solved=is_solved) if own < 1 else []
    assert all(len(values) > 10_000 and abs(sum(values) / len(values)) < 0.02 for values in found.values())
    assert list(line(0.0, 1.0, 0.0, better=1).pairs(is_solved=False)) == [0.0]
    assert list(line(0.0, 1.0, 0.0, better=1).pairs(is_solved=True)) == [1.0]


def test_the_lowest_answer_of_a_problem_counts_once() -> None:
    lines = [line(0.1, 0.0, sample=0), line(-1, 0.0, sample=2), line(-1, 0.0, sample=1)]
    assert [one.sample for one in lowest([*lines, line(0.5, 0.0, problem=1)])] == [1, 0]


def test_a_check_is_taken_in_way_by_way(tmp_path: Path) -> None:
    said = {
        "row": 12,
        "reward": -0.6,
        "refined_reward": None,
        "verdict": "truncated",
        "num_samples": 4,
        "num_better": 0,
    }
    others = [{**said, "sample": n, "reward": reward, "verdict": "max_reward"} for n, reward in enumerate([1.0, 1.5])]
    file = tmp_path / "all.jsonl"
    lines = [{"way": way, **one} for way in ("apps", "general") for one in (*others, {"sample": 3, **said})]
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    (row,) = collect("first", file, "apps")
    whole = {"cell": "first", "problem": 12, "sample": 3, "reward": -0.6, "refined": None, "verdict": "truncated"}
    assert Line.read({key: str(value) for key, value in row.items()}) == Line(**whole, drawn=4, others=(1.0, 1.5))
    (row,) = collect("first", file, "apps", {12: [0.5, 0.0]})
    assert row["others"] == "0.5 0", "the answers that no choice has seen"


def test_problems_of_several_steps_are_told_apart_by_their_tests() -> None:
    problems = list(chains.generate(12, seed=5, length=3))
    assert problems == list(chains.generate(12, seed=5, length=3)) != list(chains.generate(12, seed=6, length=3))
    for problem in problems:
        tests, (solution,) = json.loads(problem["input_output"]), json.loads(problem["solutions"])
        assert [run_reference(solution, "chain", one) for one in tests["inputs"]] == tests["outputs"]
        assert len(solution.splitlines()) == 5 and problem["question"].count("; ") == 2


def test_the_committed_page_has_the_tables_that_its_command_prints() -> None:
    command = [sys.executable, "-m", "experiments.refiners.table"]
    tables = subprocess.check_output(command, cwd=REPOSITORY, text=True).strip().split("\n\n")
    page = (RESULTS / "README.md").read_text()
    assert all(len(one.splitlines()) >= 4 and one in page for one in tables)
    found = [[cell.strip() for cell in row.split("|")] for row in page.splitlines()]
    rows = (REPOSITORY / "docs" / "refiner.md").read_text().splitlines()
    shown = [row.split(" | ") for row in rows if row.startswith("| ") and row.count(" to ") == 2]
    assert len(shown) == 17
    assert all(any({cell.strip(" |") for cell in row} <= set(known) for known in found) for row in shown)


@pytest.mark.parametrize(
    "module", ["experiments.get_qwen_coder", "experiments.refiners.draw", "experiments.refiners.table"]
)
def test_commands_of_the_page_can_be_called(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
