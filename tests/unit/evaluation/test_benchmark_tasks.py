from collections.abc import Callable
from typing import Any

import pytest

from recipe.evaluation.benchmarks import load_tasks
from recipe.evaluation.samples import Sample, program_of
from recipe.evaluation.scoring import limits_of, pass_at_k, score_samples
from reward.sandbox import SandboxConfig, shared_sandbox


def test_prompts_and_programs(records: Callable) -> None:
    scale, _ = load_tasks("humaneval", records("humaneval"))
    (mbpp,) = load_tasks("mbpp", records("mbpp"))  # task 600 is for training
    assert mbpp.problem.inputs[2] == "size = 5\nassert total((5,)) == size"
    assert scale.prompt.strip() in scale.messages[0]["content"]
    assert "assert total(()) == 0" in mbpp.messages[0]["content"]
    answer = "Sure:\n```python\ndef scale(numbers, factor):\n    return [double(factor) * x for x in numbers]\n```"
    answers = [
        (scale, answer, "passed"),  # with the prompt's helper
        (scale, f"{answer}\nIts use:\n```python\nprint(scale([1], 2))\n```", "passed"),
        (scale, "```python\ndef scale(numbers, factor):\n    pass\n```", "wrong"),
        (scale, "I do not know.", "compile_error"),
        (mbpp, "```python\ndef total(x):\n    return sum(x)\n```\n```python\nprint(total([]))\n```", "passed"),
        (mbpp, "```python\n```", "compile_error"),
    ]
    samples = [Sample(task=task, text=text, program=program_of(task, text)) for task, text, _ in answers]
    sandbox = shared_sandbox(SandboxConfig(num_slots=2))
    results = score_samples(samples, sandbox=sandbox, limits=limits_of(4.0), num_workers=2)
    assert [result.verdict.value for result in results] == [verdict for *_, verdict in answers]


RECORD = {"task_id": "HumanEval/0", "prompt": "", "entry_point": "f"}


@pytest.mark.parametrize(
    ("benchmark", "rows", "message"),
    [
        ("humaneval", [{"task_id": 0}], "records.jsonl record 1: no 'prompt' in the record"),
        ("humaneval", [{**RECORD, "test": "def check("}], "record 1: .*never closed"),
        ("humaneval", [], "no record in it"),
        ("humaneval", [{**RECORD, "test": ""}] * 2, "record 2: task HumanEval/0 occurs twice"),
        ("mbpp", [{"task_id": 600}], "no task of mbpp"),
        ("mbpp", [{"task_id": "x"}], "record 1: invalid literal"),
        ("mbpp", [{"task_id": 11, "text": "t", "test_list": []}], "record 1: no tests"),
        ("mbpp", [{"task_id": 11, "text": 7, "test_list": ["assert 7"]}], "record 1: no question"),
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
        ("mbpp", {"task_id": 11, "text": "", "prompt": "Do it.", "test_list": ["f()"]}, "Mbpp/11", "Do it."),
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
    assert task.task_id == key and task.messages[-1]["content"].startswith(question)
