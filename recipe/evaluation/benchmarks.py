"""What a model is evaluated on: where tasks come from, what is asked, and what answers are tested by."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from recipe.data_preparation.fields import Dropped, Record, messages_in
from recipe.data_preparation.sources import read_records
from reward.apps import find_code
from reward.grading import Graded
from reward.limits import Limits
from reward.math import MathProblem
from reward.problem import Problem
from reward.puzzle import Puzzle
from reward.verl_reward import parse_ground_truth

HUMANEVAL = "openai/openai_humaneval"


@dataclass(slots=True, kw_only=True, frozen=True)
class Task:
    """One problem of a benchmark.

    Example: the prompt ``import math``, ``def f(x):`` and its doc string has the preamble ``import math``.
    """

    task_id: str
    messages: list[dict[str, str]]  # the chat prompt
    problem: Problem | Graded
    preamble: str = ""  # imports and functions of HumanEval's prompt, which an answer need not repeat


@dataclass(slots=True, kw_only=True, frozen=True)
class Sample:
    """One answer to one task."""

    task: Task
    text: str

    @property
    def program(self) -> str | None:
        """The last ```python block that defines what is tested, or a graded answer; None: there is no code."""
        if isinstance(self.task.problem, Graded):
            return self.text
        code = find_code(self.text, Limits(), self.task.problem)
        return None if code is None else f"{self.task.preamble}{code}"


def _read_humaneval(record: Record) -> Task:
    prompt, entry_point, key = record["prompt"], record["entry_point"], record["task_id"]
    preamble = prompt[: max(0, f"\n{prompt}".rfind(f"\ndef {entry_point}("))]
    request = (
        f"Complete this Python function:\n```python\n{prompt.strip()}\n```\n"
        "Answer with the complete function, and all that it needs, in one ```python code block."
    )
    # What the tests use of the prompt's own functions must be that, not what an answer makes of them.
    tests = [f"{preamble}\n{record['test']}\ncheck(candidate)"]
    problem = Problem(
        problem_id=key, inputs=tests, outputs=[None], kind="test_code", leetcode=False, fn_name=entry_point
    )
    messages = [{"role": "user", "content": request}]
    return Task(task_id=key, messages=messages, problem=problem, preamble=preamble)


def _read_row(record: Record) -> Task:
    key = str(record["extra_info"]["problem_id"])
    problem = _problem_of(record["reward_model"]["ground_truth"], key)
    return Task(task_id=key, messages=messages_in(record["prompt"], "no prompt"), problem=problem)


def _problem_of(ground_truth: str, key: str) -> Problem | Graded:
    """A program's tests and a puzzle are JSON objects; anything else is a final answer."""
    try:
        fields = json.loads(ground_truth)
    except (ValueError, TypeError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return MathProblem.from_answer(ground_truth, problem_id=key)
    if "task" in fields:
        return Puzzle.from_ground_truth(ground_truth, problem_id=key)
    return parse_ground_truth(ground_truth)


BENCHMARKS: dict[str, Callable[[Record], Task]] = {"humaneval": _read_humaneval, "rows": _read_row}
"""Name: what makes a task of a record. ``rows`` are what online-refiner prepare writes."""


def load_tasks(name: str, source: str) -> list[Task]:
    """Return a benchmark's tasks, in the order of the source.

    Args:
        name: A key of :data:`BENCHMARKS`.
        source: What ``read_records`` reads.

    Raises:
        ValueError: If a record lacks something, an id occurs twice, or there is none.
        OSError: If the source cannot be read.
    """
    tasks: dict[str, Task] = {}
    for number, record in enumerate(read_records(source, "test"), 1):
        try:
            task = BENCHMARKS[name](record)
        except KeyError as error:
            raise ValueError(f"{source} record {number}: no {error} in the record") from error
        except (ValueError, TypeError, AttributeError, Dropped) as error:
            raise ValueError(f"{source} record {number}: {error}") from error
        if task.task_id in tasks:
            raise ValueError(f"{source} record {number}: task {task.task_id} occurs twice: give every task once")
        tasks[task.task_id] = task
    return list(tasks.values())
