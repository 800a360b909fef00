"""Rows of problems with one final answer, as verl's own GSM8K and MATH examples have them, and of reasoning-gym."""

import ast
import contextlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from recipe.data_preparation.fields import (
    NAME_ANSWER,
    Dropped,
    Record,
    answer_in,
    is_missing,
    messages_in,
    question_in,
    text_in,
    wanted,
)
from recipe.data_preparation.rows import VERLS_ANSWER, Row, is_verls
from reward.grading import Graded, require
from reward.judge import JudgeLostError, UnjudgeableError
from reward.judge.math_forms import clean
from reward.judge.math_marks import find_marked
from reward.judge.math_text import as_text
from reward.labels import is_formula, wrong_with
from reward.math import MathProblem
from reward.puzzle import Puzzle

GSM8K_FORMAT = 'Let\'s think step by step and output the final answer after "####".'
MATH_FORMAT = "Let's think step by step and output the final answer within \\boxed{}."
PUZZLE_FORMAT = "Give the final answer between <answer> and </answer>."


QUESTION = ("problem", "question", "prompt", "query")
SOLUTION = ("solution", "generated_solution")
ANSWER = ("answer", "final_answer", "expected_answer", VERLS_ANSWER)
"""The columns of such data sets; the first of each tuple that is not empty is used."""
MAX_EXPONENT = 300
MAX_GENERATED = 10_000
MAX_PUZZLES, MAX_SEED = 100_000, 40_000
"""The largest number of puzzles per task, and the largest seed; their product fits into numpy's 32-bit seed."""
_NAMES = ["Ada", "Ben", "Carla", "Deniz", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun"]
_THINGS = ["apples", "books", "coins", "eggs", "marbles", "pencils", "shells", "stamps"]
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_WITH_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d+)?e[-+]?\d+", re.I)
_WORD = re.compile(r"[^\W\d_]{2,}")
_UNKNOWN = re.compile(r"(?<![a-zA-Z\\])[a-z]{3,}(?=\((?!s\)))")  # a function, which math-verify takes for a product


def math_row(
    record: Record,
    index: int,
    name: str,
    *,
    answer_format: str = MATH_FORMAT,
    question: Sequence[str] = (),
    answer: Sequence[str] = ANSWER,
) -> Row:
    r"""Build a row from MATH's ``problem`` and ``solution`` (the answer in its last ``\boxed{}``), or ``answer``.

    The prompt of a row in verl's schema stays as it is: it says how to answer.

    Args:
        record: The record, which has one of ``QUESTION`` and one of ``ANSWER`` or ``SOLUTION``.
        index: The record's position in the source.
        name: The row's ``data_source``.
        answer_format: The text that follows the question in the prompt.
        question: The columns of the question, in place of ``QUESTION``.
        answer: The column of the answer, in place of ``ANSWER`` and ``SOLUTION``.

    Raises:
        Dropped: ``no question``, ``no answer``, ``answer not gradable`` (no answer would get 1) or ``not tried``.
    """
    text, prompt = _asked(record, question, answer_format)
    steps, right = text_in(record, *SOLUTION), answer_in(record, *answer)
    if right is None and answer is ANSWER:
        right = find_marked(steps)
    elif not steps and isinstance(right, str) and find_marked(right) is not None:
        steps = right.strip()
    label = "" if is_missing(right) else label_of(right)
    if not label:
        raise wanted(record, "no answer", *answer, "solution (with a mark)", remedy=NAME_ANSWER)
    problem_id = text_in(record, "unique_id", "problem_id", "extra_info.problem_id") or f"{name}/{index}"
    compared_as = _check_label(label, problem_id)
    return {
        "data_source": name,
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": label},
        "extra_info": {
            "problem_id": problem_id,
            "difficulty": text_in(record, "level"),
            "index": index,
            "question": text,
            "solution": steps,
            "compared_as": compared_as,
        },
    }


def _asked(record: Record, question: Sequence[str], answer_format: str) -> tuple[str, list[dict[str, str]]]:
    """Return the question, and the prompt that asks it."""
    if is_verls(record) and not question:
        prompt = messages_in(record["prompt"], "no question")
        return text_in(record, "extra_info.question") or "\n".join(message["content"] for message in prompt), prompt
    text = question_in(record, *QUESTION, chosen=question)
    return text, [{"role": "user", "content": f"{text} {answer_format}"}]


gsm8k_row = partial(math_row, answer_format=GSM8K_FORMAT)
"""Build a row from GSM8K's ``question`` and ``answer`` (steps, and after ``####`` the number)."""


def label_of(answer: Any) -> str:
    """Return a data set's right answer as text: the marked part of a text, or the only entry of a list.

    Raises:
        Dropped: ``answer not gradable``: there are several answers, or one that is neither text nor a number.
    """
    if isinstance(answer, str):
        marked = find_marked(answer)
        answer = (answer if marked is None else marked).strip()
        if answer[:1] in ("[", "{") and re.search("[\"']", answer):  # an interval or a set has no quotes
            for read in (json.loads, ast.literal_eval):
                with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                    return label_of(read(answer))
    if isinstance(answer, (list, tuple)) and len(answer) == 1:
        return label_of(answer[0])
    if not isinstance(answer, (str, int, float, Decimal)):
        what = f"{len(answer)} answers" if isinstance(answer, (list, tuple)) else type(answer).__name__
        raise Dropped("answer not gradable", f"it is {what}: give one, as text or a number")
    text = str(answer)
    if isinstance(answer, (float, Decimal)) or _WITH_EXPONENT.fullmatch(text):
        number = Decimal(text)
        if not number.is_finite() or abs(number.adjusted()) > MAX_EXPONENT:
            raise Dropped("answer not gradable", f"{text} is not finite, or its exponent is beyond {MAX_EXPONENT}")
        text = format(number, "f")  # 1e-07 is no number in LaTeX
    return text


def _check_label(label: str, problem_id: str) -> str:
    r"""Let the grader read a label, and the answer that somebody who has solved the problem would write.

    Returns:
        ``value``, or ``text``: no parser reads the label, so that an answer must be written as it is, up to blanks and
        notation.

    Raises:
        Dropped: ``answer not gradable`` or ``answer not tried``.
    """
    problem = MathProblem.from_answer(label, problem_id=problem_id)
    if wrong := None if _NUMBER.fullmatch(label) else wrong_with(label):
        raise Dropped("answer not gradable", wrong)
    _check_own_answer(problem, f"\\boxed{{{label}}}")
    if _NUMBER.fullmatch(label):
        return "value"
    text = as_text(clean(label))
    if unknown := _UNKNOWN.search(text):
        raise Dropped("answer not gradable", f"{text[:80]}: {unknown[0]} is no known function: give LaTeX")
    if is_formula(text):
        return "value" if _is_read(problem) else "text"
    numbers = _NUMBER.findall(text)
    if len(numbers) == 1 and "," not in text.replace(numbers[0], ""):
        before, _, behind = text.partition(numbers[0])
        is_name = before[-1:].isalpha()  # CO2
        if (_WORD.search(before) and not is_name) or len(_WORD.findall(behind)) > 2 or set(text) & set("[]{}\"'"):
            why = f"{text[:80]}: whoever answers {numbers[0]} gets 0: give the answer alone"
            _check_own_answer(problem, f"\\boxed{{{numbers[0]}}}", why)
    return "value"


def _is_read(problem: MathProblem) -> bool:
    try:
        return problem.is_read()
    except UnjudgeableError:
        return False
    except JudgeLostError as error:
        raise Dropped("answer not tried", str(error)) from error


def puzzle_row(record: Record, index: int, name: str, graded_by: str = "puzzle") -> Row:
    """Build a row from a record of ``puzzle_records``, for the puzzle's own scorer or for reward.math.

    Raises:
        Dropped: ``no JSON``, ``answer not gradable`` or ``answer not tried``.
    """
    task, entry = record["task"], record["entry"]
    try:
        ground_truth = json.dumps({"task": task, "config": record["config"], "entry": entry})
    except (TypeError, ValueError) as error:
        raise Dropped("no JSON", str(error)) from error
    problem_id, answer = f"{task}/{index}", str(entry["answer"])
    if graded_by == "math":
        prompt, ground_truth = entry["question"], label_of(answer)
        _check_label(ground_truth, problem_id)
    else:
        prompt = f"{entry['question']}\n{PUZZLE_FORMAT}"
        puzzle = Puzzle.from_ground_truth(ground_truth, problem_id=problem_id)
        _check_own_answer(puzzle, f"<answer>{answer}</answer>")
    return {
        "data_source": f"{name}/{task}",
        "prompt": [{"role": "user", "content": prompt}],
        "ability": "math" if graded_by == "math" else "reasoning",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"problem_id": problem_id, "difficulty": task, "index": index, "solution": answer},
    }


def puzzle_records(
    tasks: Sequence[str], number: int, seed: int, configs: Mapping[str, Mapping[str, Any]]
) -> Iterator[Record]:
    """Yield ``number`` puzzles for each of reasoning-gym's tasks, with the task's settings in ``configs``.

    Different seeds draw different puzzles, except that a task with few puzzles may draw equal ones. Reason:
    reasoning-gym draws puzzle i with its own seed + i, so neighbouring seeds would share all puzzles but one
    (``findings/reasoning_gym_neighbouring_seeds.sh``). Here reasoning-gym's seed is ``seed`` * MAX_PUZZLES.

    Raises:
        ValueError: If a number or seed is out of range, a task or setting is unknown, or reasoning-gym is missing.
    """
    if not 1 <= number <= MAX_PUZZLES:
        raise ValueError(f"--number {number}: give 1 to {MAX_PUZZLES}")
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"--seed {seed}: give 0 to {MAX_SEED}")
    require("reasoning_gym", "reasoning-gym")
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if unknown := sorted({*tasks, *configs} - DATASETS.keys()):
        raise ValueError(f"no task {', '.join(unknown)} in reasoning-gym: choose from {', '.join(sorted(DATASETS))}")
    for task in tasks:
        config = dict(configs.get(task, {}))
        try:
            dataset = reasoning_gym.create_dataset(task, **config, seed=seed * MAX_PUZZLES, size=number)
        except (TypeError, AssertionError) as error:
            raise ValueError(f"{task}: {error}: correct --set") from error
        for entry in dataset:
            yield {"task": task, "config": config, "entry": entry}


def word_problems(number: int, seed: int) -> Iterator[Record]:
    """Yield ``number`` different problems in GSM8K's format, of three kinds in turn, the same for the same seed.

    Raises:
        ValueError: ``number`` is not between 1 and MAX_GENERATED.
    """
    if not 1 <= number <= MAX_GENERATED:
        raise ValueError(f"--generated {number}: give 1 to {MAX_GENERATED}")
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < number:
        who, things, a, b = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 20), rng.randint(2, 20)
        question, steps, answer = [
            (f"{who} has {a} {things} and gets {b} more. How many {things} are there now?", f"{a} + {b}", a + b),
            (f"{who} has {a + b} {things} and gives {b} away. How many {things} are left?", f"{a + b} - {b}", a),
            (f"{who} fills {a} boxes with {b} {things} each. How many {things} is that?", f"{a} * {b}", a * b),
        ][len(seen) % 3]
        if question not in seen:
            seen.add(question)
            yield {"question": question, "answer": f"{steps} = {answer}\n#### {answer}"}


def _check_own_answer(problem: Graded, response: str, why: str = "") -> None:
    score = problem.score(response)
    if score.score is None:
        raise Dropped("answer not tried", score.detail)
    if score.outcome != "pass":
        raise Dropped("answer not gradable", why or f"{response[:80]}: {score.outcome}: {score.detail}")
