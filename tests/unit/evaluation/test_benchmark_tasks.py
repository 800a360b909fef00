from collections.abc import Callable
from typing import Any

import pytest

from recipe.evaluation.benchmarks import Task, load_tasks
from recipe.evaluation.prompts import PROMPTS
from recipe.evaluation.samples import Sample
from recipe.evaluation.scoring import limits_of, pass_at_k, score_samples
from reward.limits import Limits
from reward.sandbox import Sandbox

Load = Callable[[str], list[Task]]


def verdicts(samples: list[Sample], sandbox: Sandbox, limits: Limits | None = None) -> list[str]:
    results = score_samples(samples, sandbox=sandbox, limits=limits or limits_of(4.0), num_workers=2)
    return [result.verdict.value for result in results]


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_reference_passes_and_nothing_does_not(name: str, load: Load, sandbox: Sandbox) -> None:
    tasks = load(name)
    assert len(tasks) in (1, 2, 3)
    samples = [Sample(task=task, text="", program=text) for task in tasks for text in (task.reference, task.prompt)]
    assert [verdict == "passed" for verdict in verdicts(samples, sandbox)] == [True, False] * len(tasks)


def test_mbpp_counts_its_test_tasks_only(load: Load) -> None:
    (task,) = load("mbpp")  # task 600 is for training
    assert task.test_code[2] == "size = 5\nassert total((5,)) == size"
    assert task.prompt.endswith('assert total((5,)) == size\n"""\n')


def test_prompts_and_programs(load: Load, sandbox: Sandbox) -> None:
    scale, mbpp = load("humaneval")[0], load("mbpp")[0]
    chat, completion = PROMPTS["chat"], PROMPTS["completion"]
    assert scale.prompt.strip() in chat.text(scale) and "assert total(()) == 0" in chat.text(mbpp)
    answer = "Sure:\n```python\ndef scale(numbers, factor):\n    return [double(factor) * x for x in numbers]\n```"
    programs = [
        chat.program(scale, answer),  # with the prompt's helper
        chat.program(scale, f"{answer}\nIts use:\n```python\nprint(scale([1], 2))\n```"),
        chat.program(scale, "I do not know."),
        completion.program(scale, "    return [2 * factor * x for x in numbers]"),
        completion.program(mbpp, "def total(values):\n    return sum(values)"),
    ]
    tasks = [*[scale] * 4, mbpp]
    samples = [Sample(task=task, text="", program=code) for task, code in zip(tasks, programs, strict=True)]
    assert verdicts(samples, sandbox) == ["passed", "passed", "compile_error", "passed", "passed"]
    assert "\ndef " in completion.stops(scale) and "\ndef " not in completion.stops(mbpp)
    assert chat.stops(scale) == ()


TASK = {"task_id": 11, "code": "", "test_list": ["f()"]}
RECORD = {"task_id": "HumanEval/0", "prompt": "", "canonical_solution": "", "entry_point": "f"}


@pytest.mark.parametrize(
    ("benchmark", "rows", "message"),
    [
        ("humaneval", [{"task_id": 0}], "records.jsonl record 1: no 'prompt' in the record"),
        ("humaneval", [{**RECORD, "test": "def check("}], "record 1: .*never closed"),
        ("humaneval", [], "no record in it"),
        ("humaneval", [{**RECORD, "test": ""}] * 2, "record 2: task HumanEval/0 occurs twice"),
        ("mbpp", [{"task_id": 600}], "no task of mbpp"),
        ("mbpp", [{"task_id": "x"}], "record 1: invalid literal"),
        ("mbpp", [{"task_id": 11, "text": "t", "code": "", "test_list": []}], "record 1: no tests"),
        ("mbpp", [{"task_id": 11, "text": 7, "code": 7, "test_list": ["assert 7"]}], "record 1: no question"),
        ("humaneval", [{**RECORD, "prompt": 7, "test": ""}], "record 1: "),
        ("rows", [{"prompt": 7, "reward_model": {"ground_truth": "1"}, "extra_info": {"problem_id": 1}}], "record 1: "),
        ("math500", [{"problem": "What?", "answer": ["1", "2"]}], "record 1: answer not gradable"),
    ],
)
def test_bad_records_are_named(
    benchmark: str, rows: list[dict[str, Any]], message: str, write: Callable[..., str]
) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks(benchmark, write(rows, "records.jsonl"))


@pytest.mark.parametrize(
    ("num_samples", "num_passed", "k", "expected"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        (5, 2, 2, 0.7),  # 1 - C(3, 2) / C(5, 2) = 1 - 3 / 10
        (4, 2, 3, 1.0),  # fewer than k failed
        (200, 1, 100, 0.5),
        (10_000, 1, 10, 1e-3),
    ],
)
def test_pass_at_k(num_samples: int, num_passed: int, k: int, expected: float) -> None:
    assert pass_at_k(num_samples, num_passed, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("benchmark", "row", "key", "question"),
    [
        ("math500", {"problem": "What?", "answer": 0, "unique_id": 0}, "0", "What? "),
        ("math500", {"Problem": "What?", "Answer": "x^2 = -1"}, "0", "What? "),  # its numbers count for all, or none
        ("gsm8k", {"question": [{"role": "user", "content": "What?"}], "answer": "#### 0"}, "0", "What? "),
        (
            "mbpp",
            {"task_id": 11, "text": "", "prompt": "Do it.", "code": "", "test_list": ["f()"]},
            "Mbpp/11",
            "Do it.",
        ),
        (
            "rows",
            {
                "prompt": [{"role": "user", "content": [{"type": "text", "text": "What?"}]}],
                "reward_model": {"ground_truth": 0},
                "extra_info": {"problem_id": 0},
            },
            "0",
            "What?",
        ),
    ],
)
def test_falsy_values_and_parts_of_text(
    benchmark: str, row: dict[str, Any], key: str, question: str, write: Callable[..., str]
) -> None:
    (task,) = load_tasks(benchmark, write([row], "records.jsonl"))
    assert task.task_id == key and task.question.startswith(question)
