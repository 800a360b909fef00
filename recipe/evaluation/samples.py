"""Samples of a benchmark's tasks: the programs of answers, and samples from a file, one JSON object a line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe.evaluation.benchmarks import Benchmark, Task
from reward.apps import find_code
from reward.grading import Graded
from reward.limits import Limits
from reward.score import read_json_lines


@dataclass(slots=True, kw_only=True, frozen=True)
class Sample:
    """One answer to one task."""

    task: Task
    text: str  # as the model or the file gave it
    program: str | None  # what is run; None: there is no code in the text


def program_of(task: Task, answer: str) -> str | None:
    """Return a chat model's program: its last ```python block that defines what is tested; None if it has no code."""
    if isinstance(task.problem, Graded):
        return answer
    code = find_code(answer, Limits(), task.problem)
    return None if code is None else f"{task.preamble}{code}"


PROGRAMS: dict[str, Callable[[Task, str], str]] = {
    "completion": lambda task, text: task.prompt + text,
    "solution": lambda task, text: text,
}
"""By the key that a line has beside ``task_id``: from its text to a program."""


def read_samples(path: Path, benchmark: Benchmark, known: Sequence[Task], wanted: Sequence[Task]) -> list[Sample]:
    """Return the samples of the wanted tasks, in the file's order.

    Args:
        path: Lines ``{"task_id": "HumanEval/0", "completion": "..."}``, a continuation of the prompt, or ``{"task_id":
            ..., "solution": "..."}``, a whole program; several for a task are several samples of it.
        benchmark: Of the tasks.
        known: All tasks of the benchmark; a sample of another one is an error.
        wanted: Those that are evaluated.

    Raises:
        ValueError: If a line is malformed or of an unknown task, or wanted tasks have no sample.
        OSError: If the file cannot be read.
    """
    tasks = {task.task_id: task for task in known}
    keys = {task.task_id for task in wanted}
    samples = []
    for where, row in read_json_lines(path):
        if "task_id" not in row:
            raise ValueError(f"{where}: no 'task_id': give the task's id")
        task = tasks.get(benchmark.key(row["task_id"]))
        if task is None:
            raise ValueError(f"{where}: unknown task_id {row['task_id']!r}: the benchmark has no such task")
        given = [key for key in PROGRAMS if key in row]
        if len(given) != 1:
            raise ValueError(f"{where}: give one of {', '.join(PROGRAMS)}, got {' and '.join(given) or 'neither'}")
        text = row[given[0]]
        if not isinstance(text, str):
            raise ValueError(f"{where}: {given[0]} is {type(text).__name__}: give text")
        if task.task_id in keys:
            samples.append(Sample(task=task, text=text, program=PROGRAMS[given[0]](task, text)))
    missing = sorted(keys - {sample.task.task_id for sample in samples})
    if missing:
        raise ValueError(f"{path}: {len(missing)} tasks have no sample, such as {', '.join(missing[:5])}")
    return samples
