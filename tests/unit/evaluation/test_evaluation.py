"""Tasks, programs, verdicts and the command's result, of a small benchmark in HumanEval's format and of verl rows."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.evaluation import __main__ as evaluate
from recipe.evaluation.benchmarks import Sample, load_tasks
from recipe.evaluation.scoring import limits_of, pass_at_k, score_samples
from reward.judge import JudgeLostError
from reward.sandbox import SandboxConfig, shared_sandbox

SCALE_PROMPT = '''from typing import List

def double(x: float) -> float:
    return 2 * x


def scale(numbers: List[float], factor: float) -> List[float]:
    """Multiply every number by twice the factor."""
'''
HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": SCALE_PROMPT,
        "test": "def check(candidate):\n    assert candidate([1.0, 2.0], 1.5) == [1.5 * double(x) for x in (1, 2)]\n"
        "    assert candidate([], 3.0) == []\n",
        "entry_point": "scale",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def swap(pair):\n    """Swap the two in the pair."""\n',
        "test": "def check(candidate):\n    assert candidate((1, 2)) == (2, 1)\n",
        "entry_point": "swap",
    },
]
RIGHT = "```python\ndef scale(numbers, factor):\n    return [double(factor) * x for x in numbers]\n```"
WRONG = "```python\ndef scale(numbers, factor):\n    return numbers\n```"
SWAP = "```python\ndef swap(pair):\n    return pair[1], pair[0]\n```"
Write = Callable[[list[dict[str, Any]]], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes records to a gzipped file, and returns its path."""

    def write_rows(rows: list[dict[str, Any]]) -> str:
        (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
        return str(tmp_path / "r.jsonl.gz")

    return write_rows


def row(key: object, truth: object) -> dict[str, Any]:
    prompt = [{"role": "user", "content": [{"type": "text", "text": f"Write {key}."}]}]
    truth = json.dumps(truth) if isinstance(truth, dict) else truth
    return {"prompt": prompt, "reward_model": {"ground_truth": truth}, "extra_info": {"problem_id": key}}


ROWS = [
    row("add", {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}),
    row("echo", {"inputs": ["a"], "outputs": ["a"]}),
    row(0, "0.5"),
]


@pytest.mark.parametrize(
    ("benchmark", "records", "answers"),
    [
        (
            "humaneval",
            HUMANEVAL,
            [
                (0, f"Sure:\n{RIGHT}", "passed"),
                (0, f"{RIGHT}\nIts use:\n```python\nprint(scale([1], 2))\n```", "passed"),
                (0, WRONG, "wrong"),
                (0, "I do not know.", "compile_error"),
                (1, SWAP, "passed"),
            ],
        ),
        (
            "rows",
            ROWS,
            [
                (0, "```python\ndef add(a, b): return a + b\n```", "passed"),
                (1, "```python\nprint(input() * 2)\n```", "wrong"),
                (2, "\\boxed{1/2}", "passed"),
                (2, "No idea.\nNone.", "wrong"),
            ],
        ),
    ],
)
def test_answers_are_judged(
    benchmark: str, records: list[dict[str, Any]], answers: list[tuple[int, str, str]], write: Write
) -> None:
    tasks = load_tasks(benchmark, write(records))
    samples = [Sample(task=tasks[place], text=text) for place, text, _ in answers]
    sandbox = shared_sandbox(SandboxConfig(num_slots=2))
    results = score_samples(samples, sandbox=sandbox, limits=limits_of(4.0), num_workers=2)
    assert [result.verdict.value for result in results] == [verdict for *_, verdict in answers]


def test_what_a_model_is_asked(write: Write) -> None:
    assert SCALE_PROMPT.strip() in load_tasks("humaneval", write(HUMANEVAL))[0].messages[0]["content"]
    *_, answer = load_tasks("rows", write(ROWS))
    assert answer.task_id == "0" and answer.messages[-1]["content"].startswith("Write 0.")


@pytest.mark.parametrize(
    ("benchmark", "rows", "message"),
    [
        ("humaneval", [{"task_id": 0}], "r.jsonl.gz record 1: no 'prompt' in the record"),
        ("humaneval", [], "no record in it"),
        ("humaneval", HUMANEVAL[:1] * 2, "record 2: task HumanEval/0 occurs twice"),
        ("humaneval", [{**HUMANEVAL[0], "prompt": 7}], "record 1: "),
        ("rows", [{**ROWS[0], "prompt": 7}], "record 1: "),
    ],
)
def test_bad_records_are_named(benchmark: str, rows: list[dict[str, Any]], message: str, write: Write) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks(benchmark, write(rows))


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


@pytest.fixture
def judged(write: Write, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return a function that judges answers to the small HumanEval; returns the exit status and the result."""

    def judge(answers: list[tuple[int, str]], *options: str) -> tuple[int, dict[str, Any]]:
        data, output = write(HUMANEVAL), tmp_path / "results" / "result.json"
        command = ["--benchmark", "humaneval", "--data", data, "--model", "m", "--output", str(output), *options]
        tasks = load_tasks("humaneval", data)
        samples = [Sample(task=tasks[place], text=text) for place, text in answers]
        status = evaluate.judge(evaluate.parse_arguments(command), limits_of(4.0), samples, "asked")
        return status, json.loads(output.read_text())

    return judge


def test_result_says_what_happened(judged: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = judged([(0, RIGHT), (0, WRONG), (1, SWAP), (1, SWAP)], "--k", "1,2", "--workers", "2")
    assert status == 0
    assert result["pass_at_k"] == {"pass@1": 0.75, "pass@2": 1.0}
    assert result["verdicts"] == {"passed": 3, "wrong": 1}
    assert (result["num_problems"], result["num_samples"], result["prompt"]) == (2, 4, "asked")
    assert result["versions"]["python"] and result["versions"]["torch"]
    assert result["samples"][1] == {
        **{"task_id": "HumanEval/0", "verdict": "wrong", "detail": "test 1: wrong answer"},
        **{"num_passed": 0, "num_tests": 1, "text": WRONG},
        "program": result["samples"][0]["program"].replace("[double(factor) * x for x in numbers]", "numbers"),
    }
    assert result["samples"][1]["program"].startswith("from typing import List")
    assert "'pass@2': 1.0" in capsys.readouterr().out


def test_programs_that_could_not_be_run(judged: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    shared_sandbox(SandboxConfig(num_slots=3)).close()  # the one that this command shares
    status, result = judged([(0, RIGHT), (1, SWAP)], "--workers", "3")
    assert (status, result["pass_at_k"], result["verdicts"]) == (1, {"pass@1": None}, {"infra_error": 2})
    error = capsys.readouterr().err
    assert error.count("could not be run") == 2 and "HumanEval/1" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--benchmark", "humaneval", "--k", "1,2"], "pass@2 needs --num-samples 2"),
        (["--benchmark", "humaneval", "--timeout", "0"], "test_s must be a number above 0"),
        (["--benchmark", "humaneval", "--data", "/nowhere.jsonl"], "/nowhere.jsonl: no such file or folder"),
        (["--benchmark", "rows"], "set --data to a parquet file of verl rows"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--model", "m", *options]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_a_judge_that_is_lost_costs_one_sample(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> str:
        raise JudgeLostError("no judge answered")

    monkeypatch.setattr("recipe.evaluation.benchmarks.find_code", lost)
    (task, *_) = load_tasks("humaneval", write(HUMANEVAL))
    (result,) = score_samples(
        [Sample(task=task, text=RIGHT)],
        sandbox=shared_sandbox(SandboxConfig()),
        limits=limits_of(5.0),
        num_workers=1,
    )
    assert (result.verdict.value, result.detail, result.program) == ("infra_error", "no judge answered", None)
