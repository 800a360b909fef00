"""The benchmarks: where their records come from, what a model is asked, and what its answers are tested by."""

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass, field

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
class Task:
    """One problem of a benchmark.

    Example: the prompt ``import math``, ``def f(x):`` and its doc string has the preamble ``import math``.
    """

    task_id: str  # "HumanEval/0" or "Mbpp/11"
    messages: list[dict[str, str]]  # the chat prompt
    problem: Problem | Graded
    prompt: str = ""  # what a sample's completion continues
    preamble: str = ""  # imports and functions of HumanEval's prompt, which an answer need not repeat


def _read_humaneval(record: Record, key: str) -> Task:
    prompt, entry_point = record["prompt"], record["entry_point"]
    preamble = prompt[: max(0, f"\n{prompt}".rfind(f"\ndef {entry_point}("))]
    request = (
        f"Complete this Python function:\n```python\n{prompt.strip()}\n```\n"
        "Answer with the complete function, and all that it needs, in one ```python code block."
    )
    # What the tests use of the prompt's own functions must be that, not what an answer makes of them.
    problem = _assertions([f"{preamble}\n{record['test']}\ncheck(candidate)"], key, entry_point)
    return Task(task_id=key, messages=_asked(request), problem=problem, prompt=prompt, preamble=preamble)


def _read_mbpp(record: Record, key: str) -> Task:
    setup = [*(record.get("test_imports") or []), record.get("test_setup_code") or ""]
    request = "\n".join([question_in(record, "text", "prompt"), *record["test_list"]]).strip() + (
        "\nAnswer with a complete Python function of the name that the assertions use, and all that it needs, in one "
        "```python code block."
    )
    problem = _assertions(["\n".join([*setup, test]) for test in record["test_list"]], key)
    return Task(task_id=key, messages=_asked(request), problem=problem)


def _asked(request: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": request}]


def _assertions(tests: list[str], key: str, entry_point: str | None = None) -> Problem:
    """Return a benchmark's test code as it is."""
    if not tests:
        raise ValueError("no tests in the record")
    for test in tests:
        ast.parse(test)
    outputs = [None] * len(tests)
    return Problem(problem_id=key, inputs=tests, outputs=outputs, kind="test_code", leetcode=False, fn_name=entry_point)


def _read_row(record: Record, key: str) -> Task:
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


def _asked_as_in_training(row_of: Callable[..., Row]) -> Callable[[Record, str], Task]:
    return lambda record, key: _read_row(row_of(record, 0, key, is_label_checked=False), key)


@dataclass(slots=True, kw_only=True, frozen=True)
class Benchmark:
    """One entry of :data:`BENCHMARKS`."""

    read: Callable[[Record, str], Task]  # from a record and its key
    task_id: Callable[[Record], object] = field(default=lambda record: record["task_id"])
    prefix: str = ""  # of its tasks' ids
    hub_id: str = ""  # data set on the hub whose split `test` is read unless --data is given; "": --data must be
    hub_config: str | None = None  # configuration of the hub's data set, where it has several
    task_numbers: range | None = None  # tasks that count; None: all of the source

    def key(self, task_id: object) -> str:
        """Return the one way to write a task's id: MBPP's records have ``11``, samples often ``Mbpp/11``."""
        return self.prefix + str(task_id).rpartition("/")[2] if self.prefix else str(task_id)


BENCHMARKS: dict[str, Benchmark] = {
    "humaneval": Benchmark(read=_read_humaneval, prefix="HumanEval/", hub_id="openai/openai_humaneval"),
    "mbpp": Benchmark(
        read=_read_mbpp, prefix="Mbpp/", hub_id="google-research-datasets/mbpp", task_numbers=range(11, 511)
    ),
    "gsm8k": Benchmark(
        read=_asked_as_in_training(gsm8k_row),
        task_id=lambda record: record["index"],
        hub_id="openai/gsm8k",
        hub_config="main",
    ),
    "math500": Benchmark(
        read=_asked_as_in_training(math_row),
        task_id=lambda record: text_in(record, "unique_id", "index"),
        hub_id="HuggingFaceH4/MATH-500",
    ),
    # What scripts/prepare_data.py writes.
    "rows": Benchmark(read=_read_row, task_id=lambda record: record["extra_info"]["problem_id"]),
}
"""HumanEval+ and MBPP+ are evalplus's own to run (docs/evaluation.md)."""


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
            key = benchmark.key(benchmark.task_id({"index": index, **record}))
            if benchmark.task_numbers is not None and int(key.partition("/")[2]) not in benchmark.task_numbers:
                continue
            task = benchmark.read(record, key)
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
