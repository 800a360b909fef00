"""Rows of problems with one final answer, as verl's own GSM8K and MATH examples have them, and of reasoning-gym."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe.data_preparation.rows import Dropped, Row
from recipe.data_preparation.sources import Record
from reward.grading import Graded
from reward.judge.math_marks import find_marked
from reward.math import MathProblem
from reward.puzzle import Puzzle

GSM8K_FORMAT = 'Let\'s think step by step and output the final answer after "####".'
MATH_FORMAT = "Let's think step by step and output the final answer within \\boxed{}."
PUZZLE_FORMAT = "Give the final answer between <answer> and </answer>."


def gsm8k_row(record: Record, index: int, name: str) -> Row:
    """Build a row from GSM8K's ``question`` and ``answer`` (steps, and behind ``####`` the number).

    Raises:
        Dropped: ``no question``, ``no answer``, or ``answer not gradable``: its own solution does not get 1.
    """
    return _row(record, index, name, question="question", solution="answer", answer_format=GSM8K_FORMAT)


def math_row(record: Record, index: int, name: str) -> Row:
    r"""Build a row from MATH's ``problem`` and ``solution`` (the answer in its last ``\boxed{}``), or ``answer``.

    Raises:
        Dropped: As ``gsm8k_row``.
    """
    return _row(record, index, name, question="problem", solution="solution", answer_format=MATH_FORMAT)


def _row(record: Record, index: int, name: str, *, question: str, solution: str, answer_format: str) -> Row:
    text, steps = (str(record.get(key) or "").strip() for key in (question, solution))
    if not text:
        raise Dropped("no question")
    answer = find_marked(steps) if steps else None
    if answer is None or solution != "answer":
        answer = str(record.get("answer") or answer or "")
    answer = answer.strip()
    if not answer:
        raise Dropped("no answer")
    problem_id = str(record.get("unique_id") or record.get("problem_id") or f"{name}/{index}")
    _check_own_answer(MathProblem.from_answer(answer, problem_id=problem_id), f"\\boxed{{{answer}}}")
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": f"{text} {answer_format}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {
            "problem_id": problem_id,
            "difficulty": str(record.get("level") or ""),
            "index": index,
            "question": text,
            "solution": steps,
        },
    }


def puzzle_row(record: Record, index: int, name: str, graded_by: str = "puzzle") -> Row:
    """Build a row from what ``puzzle_records`` yields, for its own scorer or, with the question alone, for reward.math.

    Raises:
        Dropped: ``no JSON``, or ``answer not gradable``.
    """
    task, entry = record["task"], record["entry"]
    try:
        ground_truth = json.dumps({"task": task, "config": record["config"], "entry": entry})
    except (TypeError, ValueError) as error:
        raise Dropped("no JSON", str(error)) from error
    problem_id, answer = f"{task}/{index}", str(entry["answer"])
    if graded_by == "math":
        prompt, ground_truth = entry["question"], answer
        _check_own_answer(MathProblem.from_answer(answer, problem_id=problem_id), f"\\boxed{{{answer}}}")
    else:
        prompt = f"{entry['question']}\n{PUZZLE_FORMAT}"
        puzzle = Puzzle.from_ground_truth(ground_truth, problem_id=problem_id)
        _check_own_answer(puzzle, f"<answer>{answer}</answer>")
    return {
        "data_source": f"{name}/{task}",
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"problem_id": problem_id, "difficulty": task, "index": index, "solution": answer},
    }


def puzzle_records(
    tasks: Sequence[str], number: int, seed: int, configs: Mapping[str, Mapping[str, Any]]
) -> Iterator[Record]:
    """Yield so many puzzles of each of reasoning-gym's tasks, made with the seed and settings of the task's own.

    Raises:
        ValueError: An unknown task or setting, or reasoning-gym is not installed.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ValueError(f"reasoning-gym is not installed ({error}): pip install reasoning-gym") from error
    if unknown := sorted({*tasks, *configs} - DATASETS.keys()):
        raise ValueError(f"no task {', '.join(unknown)} in reasoning-gym: choose from {', '.join(sorted(DATASETS))}")
    for task in tasks:
        config = dict(configs.get(task, {}))
        try:
            dataset = reasoning_gym.create_dataset(task, **config, seed=seed, size=number)
        except (TypeError, AssertionError) as error:
            raise ValueError(f"{task}: {error}: mend --set") from error
        for entry in dataset:
            yield {"task": task, "config": config, "entry": entry}


def _check_own_answer(problem: Graded, response: str) -> None:
    score = problem.score(response)
    if score.score is None:
        raise ValueError(f"problem {problem.problem_id} could not be graded: {score.detail}")
    if score.outcome != "pass":
        raise Dropped("answer not gradable", f"{score.outcome}: {score.detail}")
