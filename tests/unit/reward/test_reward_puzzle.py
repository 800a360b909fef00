"""Puzzles of reasoning-gym: generated, scored by their own scorers, and not to be forged."""

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from data_command import prepared

from recipe.data_preparation.math_rows import MAX_SEED, puzzle_records
from reward import math
from reward.judge.puzzles import grade_puzzle
from reward.limits import Limits
from reward.puzzle import FORGEABLE, Puzzle, compute_score

reasoning_gym = pytest.importorskip("reasoning_gym", reason="the optional package reasoning-gym is not installed")
FORGED = {
    "polynomial_multiplication": "__import__('unittest.mock').mock.ANY",
    "n_queens": "[row.split() for row in valid_solutions[0].split(chr(10))]",
    "binary_matrix": "[row.split() for row in oracle_answer.split(chr(10))]",
    "countdown": "__import__('os').system('touch {file}')",
}
"""Answers that the task's scorer would evaluate: to what equals everything, to what it expects, or to run a command."""


def rows_of(folder: Path) -> list[dict]:
    return [row for split in ("train", "val") for row in pq.read_table(folder / f"{split}.parquet").to_pylist()]


def test_puzzles_are_scored_by_their_own_scorers(tmp_path: Path) -> None:
    tasks = ["--tasks", "chain_sum,countdown,spell_backward", "--number", "4", "--set", "chain_sum.max_terms=2"]
    result = prepared("reasoning-gym", *tasks, "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path)
    assert len(rows) == 12
    for row in rows:
        truth = row["reward_model"]["ground_truth"]
        answer = row["extra_info"]["solution"]
        right = asyncio.run(compute_score(row["data_source"], f"I think <answer>{answer}</answer>", truth))
        wrong = asyncio.run(compute_score(row["data_source"], "<answer>?</answer>", truth))
        assert (right["score"], right["outcome"]) == (1.0, "pass")
        assert wrong["score"] < 0.1 and wrong["outcome"] == "fail"
        assert asyncio.run(compute_score(row["data_source"], answer, truth))["acc"] == 1.0
    assert {len(json.loads(row["reward_model"]["ground_truth"])["config"]) for row in rows} == {0, 1}
    with pytest.raises(ValueError, match="is no puzzle: make the data with"):
        Puzzle.from_ground_truth("72", problem_id=1)
    result = prepared("reasoning-gym", "--tasks", "chain_sums", "--output", str(tmp_path))
    assert result.returncode == 2 and "no task chain_sums in reasoning-gym: choose from" in result.stderr


def test_puzzles_with_a_plain_answer_can_be_graded_as_mathematics(tmp_path: Path) -> None:
    tasks = ["--tasks", "chain_sum", "--number", "12", "--graded-by", "math", "--val-fraction", "0.5"]
    result = prepared("reasoning-gym", *tasks, "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    for row in rows_of(tmp_path):
        question, truth = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]
        assert question.endswith("=") and truth == row["extra_info"]["solution"]
        written = question.rpartition(":")[2].strip()
        assert asyncio.run(math.compute_score(row["data_source"], f"{written} {truth}", truth))["score"] == 1.0
        assert asyncio.run(math.compute_score(row["data_source"], f"{written} {truth}1", truth))["score"] == 0.0


def test_puzzles_of_two_seeds_are_others() -> None:
    """Also the last seed works, with a task whose numbers are numpy's."""

    def drawn(seed: int) -> set[str]:
        records = puzzle_records(["chain_sum", "pool_matrix"], 6, seed, {"chain_sum": {"min_digits": 4}})
        return {record["entry"]["question"] for record in records}

    first = drawn(0)
    assert len(first) == 12 and drawn(0) == first
    assert not any(first & drawn(seed) for seed in (1, 2, MAX_SEED))


@pytest.mark.parametrize("task", FORGED)
def test_forged_answers_get_what_a_wrong_one_gets(task: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    file = tmp_path / "ran"
    entry = reasoning_gym.create_dataset(task, seed=0, size=1)[0]
    truth = json.dumps({"task": task, "config": {}, "entry": entry})
    puzzle = Puzzle.from_ground_truth(truth, problem_id=task)
    limits = Limits(test_s=1.0)
    wrong = puzzle.score("<answer>0</answer>", limits)
    assert wrong.score is not None and wrong.score < 0.1
    for text in (
        FORGED[task].format(file=file),
        f"open({str(file)!r}, 'w')",
        "9**9**9**9",
        "[" * 5000,
        "1" * (1 << 20),
    ):
        result = puzzle.score(f"<answer>{text}</answer>", limits)
        assert result.score is not None and result.score <= max(wrong.score, 0.05), (text[:40], result)
    assert puzzle.score(f"<answer>{entry['answer']}</answer>", limits).score == 1.0
    assert not file.exists()


def test_letters_do_not_stand_for_numbers_in_countdown() -> None:
    """Letters must be refused: for the scorer x - x is 0 and x / x is 1, so any target could be made."""
    entry = reasoning_gym.create_dataset("countdown", seed=0, size=1)[0]
    truth = json.dumps({"task": "countdown", "config": {}, "entry": entry})
    product = "*".join(map(str, entry["metadata"]["numbers"]))
    forged = f"({product})*(x-x)+({'+'.join(['x'] * entry['metadata']['target'])})/x"
    puzzle = Puzzle.from_ground_truth(truth, problem_id=7)
    assert puzzle.score(f"<answer>{forged}</answer>", Limits()).score == 0.0
    assert puzzle.score(f"<answer>{entry['answer']}</answer>", Limits()).score == 1.0


@pytest.mark.parametrize("task", FORGEABLE)
def test_tasks_whose_scorers_pass_what_is_wrong_are_refused(task: str, tmp_path: Path) -> None:
    data = reasoning_gym.create_dataset(task, seed=3, size=4)
    passed = 0
    for entry in data:
        forged = {"gsm_symbolic": f"-{entry['answer']}", "game_of_life_halting": "no idea", "puzzle24": "6*4*1*1"}
        wrong = forged.get(task, FORGEABLE[task])
        truth = json.dumps({"task": task, "config": {}, "entry": entry})
        passed += wrong != entry["answer"] and grade_puzzle(truth, f"<answer>{wrong}</answer>")[0] == "pass"
        with pytest.raises(ValueError, match=f"problem 7: reasoning-gym's scorer of {task} gives full points to "):
            Puzzle.from_ground_truth(truth, problem_id=7)
    assert passed > 2, "the library has mended it: take it out of the list"
    result = prepared("reasoning-gym", "--tasks", task, "--number", "4", "--output", str(tmp_path))
    assert result.returncode == 2 and f"scorer of {task} gives full points" in result.stderr
