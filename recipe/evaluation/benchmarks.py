"""The benchmarks: where their records come from, and what a task is, whichever format its record has."""

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass

from recipe.data_preparation.fields import Dropped, Record, messages_in, question_in, text_in
from recipe.data_preparation.math_rows import gsm8k_row, math_row
from recipe.data_preparation.rows import Row
from recipe.data_preparation.sources import read_records
from reward.grading import Graded
from reward.math import MathProblem
from reward.problem import Problem
from reward.puzzle import Puzzle
from reward.verl_reward import parse_ground_truth


@dataclass(slots=True, kw_only=True, frozen=True)
class Benchmark:
    """One entry of :data:`BENCHMARKS`."""

    family: str  # a key of READERS
    hub_id: str = ""  # data set on the hub whose split `test` is read unless --data is given; "": --data must be
    hub_config: str | None = None  # configuration of the hub's data set, where it has several
    task_numbers: range | None = None  # tasks that count; None: all of the source


BENCHMARKS: dict[str, Benchmark] = {
    "humaneval": Benchmark(family="humaneval", hub_id="openai/openai_humaneval"),
    "mbpp": Benchmark(family="mbpp", hub_id="google-research-datasets/mbpp", task_numbers=range(11, 511)),
    "gsm8k": Benchmark(family="gsm8k", hub_id="openai/gsm8k", hub_config="main"),
    "math500": Benchmark(family="math", hub_id="HuggingFaceH4/MATH-500"),
    "rows": Benchmark(family="rows"),  # what scripts/prepare_data.py writes
}
"""HumanEval+ and MBPP+ are evalplus's own to run (docs/evaluation.md)."""


@dataclass(slots=True, kw_only=True, frozen=True)
class Task:
    """One problem of a benchmark.

    It has ``test_code`` or ``problem``.

    Example: the prompt ``import math``, a blank line, ``def f(x):`` and its doc string has the entry_point ``f``; its
    preamble is what stands before the ``def``.
    """

    task_id: str  # "HumanEval/0" or "Mbpp/11"
    family: str  # of its benchmark
    question: str  # what a chat model is asked to write
    prompt: str = ""  # what a completion continues
    entry_point: str = ""  # function that the tests call; "" where only the test code names it
    preamble: str = ""  # imports and functions that stand in the prompt before the function; "" for MBPP
    reference: str = ""  # the reference solution, a whole program
    test_code: tuple[str, ...] = ()  # [num_tests] assertions
    problem: Problem | Graded | None = None  # of a row of training or validation data, or of mathematics
    messages: tuple[dict[str, str], ...] = ()  # such a row's chat prompt


def load_tasks(name: str, source: str | None) -> list[Task]:
    """Return a benchmark's tasks, in the order of the source.

    Args:
        name: A key of :data:`BENCHMARKS`.
        source: What ``read_records`` reads; None: the benchmark's own hub id.

    Raises:
        ValueError: If a record lacks something, an id occurs twice, or nothing is left.
        OSError: If the source cannot be read.
    """
    benchmark = BENCHMARKS[name]
    if not (source or benchmark.hub_id):
        raise ValueError(f"--benchmark {name} has no data of its own: set --data to a parquet file of verl rows")
    tasks: dict[str, Task] = {}
    advice = f"give the records of {benchmark.hub_id or 'scripts/prepare_data.py'}"
    source, config = (source, None) if source else (benchmark.hub_id, benchmark.hub_config)
    for index, record in enumerate(read_records(source, "test", config)):
        where = f"{source} record {index + 1}"
        try:
            key = task_key(TASK_IDS[benchmark.family]({"index": index, **record}), benchmark.family)
            if benchmark.task_numbers is not None and int(key.partition("/")[2]) not in benchmark.task_numbers:
                continue
            task = READERS[benchmark.family](record, key)
            if task.problem is None and not task.test_code:
                raise ValueError("no tests in the record")
            for test in task.test_code:
                ast.parse(test)
        except KeyError as error:
            raise ValueError(f"{where}: no {error} in the record: {advice}") from error
        except (ValueError, SyntaxError, TypeError, AttributeError, IndexError, Dropped) as error:
            raise ValueError(f"{where}: {error}: {advice}") from error
        if key in tasks:
            raise ValueError(f"{where}: task {key} occurs twice: give every task once")
        tasks[key] = task
    if not tasks:
        raise ValueError(f"{source}: no task of {name} in it: set --data to its records")
    return list(tasks.values())


PREFIXES = {"humaneval": "HumanEval", "mbpp": "Mbpp"}
TASK_IDS: dict[str, Callable[[Record], object]] = {
    "humaneval": lambda record: record["task_id"],
    "mbpp": lambda record: record["task_id"],
    "gsm8k": lambda record: record["index"],
    "math": lambda record: text_in(record, "unique_id", "index"),
    "rows": lambda record: record["extra_info"]["problem_id"],
}


def task_key(task_id: object, family: str) -> str:
    """Return the one way to write a task's id: MBPP's records have ``11``, samples often ``Mbpp/11``."""
    if family not in PREFIXES:
        return str(task_id)
    return f"{PREFIXES[family]}/{str(task_id).rpartition('/')[2]}"


def _read_humaneval(record: Record, key: str) -> Task:
    prompt, entry_point = record["prompt"], record["entry_point"]
    preamble = prompt[: max(0, f"\n{prompt}".rfind(f"\ndef {entry_point}("))]
    return Task(
        task_id=key,
        family="humaneval",
        prompt=prompt,
        question=prompt,
        entry_point=entry_point,
        preamble=preamble,
        reference=prompt + record["canonical_solution"],
        # What the tests use of the prompt's own functions must be that, not what an answer makes of them.
        test_code=(f"{preamble}\n{record['test']}\ncheck(candidate)",),
    )


def _read_mbpp(record: Record, key: str) -> Task:
    setup = [*(record.get("test_imports") or []), record.get("test_setup_code") or ""]
    question = "\n".join([question_in(record, "text", "prompt"), *record["test_list"]])
    return Task(
        task_id=key,
        family="mbpp",
        prompt=f'"""\n{question}\n"""\n',
        question=question,
        reference=record["code"],
        test_code=tuple("\n".join([*setup, test]) for test in record["test_list"]),
    )


def _read_row(record: Record, key: str) -> Task:
    messages = tuple(messages_in(record["prompt"], "no prompt"))
    return Task(
        task_id=key,
        family="rows",
        question=messages[-1]["content"],
        problem=_problem_of(record["reward_model"]["ground_truth"], key),
        messages=messages,
    )


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


def _asked_as_in_training(row_of: Callable[..., Row]) -> Callable[[Record, str], Task]:
    return lambda record, key: _read_row(row_of(record, 0, key, is_label_checked=False), key)


READERS: dict[str, Callable[[Record, str], Task]] = {
    "humaneval": _read_humaneval,
    "mbpp": _read_mbpp,
    "gsm8k": _asked_as_in_training(gsm8k_row),
    "math": _asked_as_in_training(math_row),
    "rows": _read_row,
}
