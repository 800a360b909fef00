import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.evaluation import __main__ as evaluate
from reward.sandbox import SandboxConfig, shared_sandbox

Write = Callable[[list[dict[str, Any]], str], str]
RIGHT = {"task_id": "HumanEval/0", "completion": "    return [double(factor) * x for x in numbers]\n"}
WRONG = {"task_id": "HumanEval/0", "completion": "    return numbers\n"}
SWAP = {"task_id": "1", "solution": "def swap(pair): return pair[1], pair[0]"}


@pytest.fixture
def run(
    records: Callable[[str], str], tmp_path: Path, write: Write
) -> Callable[..., tuple[int, dict[str, Any] | None]]:
    """Return a function that evaluates samples of the small HumanEval; returns the exit status and the result."""

    def run_samples(rows: list[dict[str, Any]], *options: str) -> tuple[int, dict[str, Any] | None]:
        output = tmp_path / "results" / "result.json"
        samples = write(rows, "samples.jsonl.gz")
        command = ["--benchmark", "humaneval", "--data", records("humaneval"), "--samples", samples, "--workers", "2"]
        status = evaluate.main([*command, "--output", str(output), *options])
        return status, json.loads(output.read_text()) if output.exists() else None

    return run_samples


def test_result_says_what_happened(run: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run([RIGHT, WRONG, SWAP, {**SWAP, "solution": "def swap(pair): return (2, 1)"}], "--k", "1,2")
    assert status == 0
    assert result["pass_at_k"] == {"pass@1": 0.75, "pass@2": 1.0}
    assert result["verdicts"] == {"passed": 3, "wrong": 1}
    assert (result["num_problems"], result["num_samples"], result["prompt"]) == (2, 4, None)
    assert result["versions"]["python"] and result["versions"]["torch"]
    assert result["samples"][1] == {
        "task_id": "HumanEval/0",
        "verdict": "wrong",
        "detail": "test 0: wrong answer",
        "num_passed": 0,
        "num_tests": 1,
        "text": WRONG["completion"],
        "program": result["samples"][0]["program"].replace("[double(factor) * x for x in numbers]", "numbers"),
    }
    assert result["samples"][1]["program"].startswith("from typing import List")
    printed = capsys.readouterr().out
    assert "'pass@2': 1.0" in printed
    status, result = run([RIGHT, SWAP], "--limit", "1")  # the samples of other tasks are left out
    assert (status, result["num_problems"], result["num_problems_of_benchmark"]) == (0, 1, 2)


def test_rows_of_training_data_are_judged_as_in_training(
    tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    tests = {"add": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}, "echo": {"inputs": ["a"], "outputs": ["a"]}}
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Write {name}."}],
            "reward_model": {"ground_truth": json.dumps(truth)},
            "extra_info": {"problem_id": name},
        }
        for name, truth in tests.items()
    ]
    data, output = str(tmp_path / "val.parquet"), tmp_path / "result.json"
    datasets.Dataset.from_list(rows).to_parquet(data)
    samples = [
        {"task_id": "add", "solution": "def add(a, b): return a + b"},
        {"task_id": "echo", "solution": "print(input() * 2)"},
    ]
    command = ["--benchmark", "rows", "--samples", write(samples, "s.jsonl"), "--output", str(output)]
    assert evaluate.main([*command, "--data", data]) == 0
    result = json.loads(output.read_text())
    assert [sample["verdict"] for sample in result["samples"]] == ["passed", "wrong"]
    assert result["pass_at_k"] == {"pass@1": 0.5}
    assert evaluate.main(command) == 2
    assert "set --data to a parquet file of verl rows" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["gsm8k", "math500"])
def test_final_answers_are_graded_as_in_training(benchmark: str, tmp_path: Path, write: Write) -> None:
    records = [
        {"question": "3 + 4?", "problem": "3 + 4?", "answer": "#### 7", "solution": "\\boxed{7}"},
        {"question": "1 / 2?", "problem": "1 / 2?", "answer": "#### 0.5", "solution": "\\boxed{\\frac12}"},
    ]
    if benchmark == "math500":
        records = [{name: record[name] for name in ("problem", "solution")} for record in records]
    samples = [
        {"task_id": "0", "solution": "It is 7.\n#### 7"},
        {"task_id": "1", "solution": "\\boxed{1/2}"},
        {"task_id": "1", "solution": "No idea.\nNone."},
    ]
    output = tmp_path / "result.json"
    files = ["--data", write(records, "data.jsonl"), "--samples", write(samples, "s.jsonl")]
    assert evaluate.main(["--benchmark", benchmark, *files, "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    assert [sample["verdict"] for sample in result["samples"]] == ["passed", "passed", "wrong"]
    assert result["pass_at_k"] == {"pass@1": 0.75} and result["samples"][2]["detail"] == "no_answer: "


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([RIGHT], [], "1 tasks have no sample, such as HumanEval/1"),
        ([{**RIGHT, "task_id": 7}], [], "line 1: unknown task_id 7"),
        ([RIGHT, {"completion": ""}], [], "line 2: no 'task_id'"),
        ([{"task_id": 1}], [], "line 1: give one of completion, solution, got neither"),
        ([{**RIGHT, **SWAP}], [], "got completion and solution"),
        ([{**RIGHT, "completion": None}], [], "completion is NoneType: give text"),
        ([RIGHT, SWAP], ["--k", "1,2"], "pass@2 needs 2 samples of every task, HumanEval/0 has 1"),
        ([RIGHT, SWAP], ["--timeout", "0"], "test_s must be a number above 0"),
        ([RIGHT, SWAP], ["--data", "/nowhere.jsonl"], "/nowhere.jsonl: no such file or folder"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    rows: list[dict[str, Any]], options: list[str], message: str, run: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(rows, *options) == (2, None)
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_programs_that_could_not_be_run(run: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    shared_sandbox(SandboxConfig(num_slots=3)).close()  # the one that this command shares
    status, result = run([RIGHT, SWAP], "--workers", "3")
    assert (status, result["pass_at_k"], result["verdicts"]) == (1, {"pass@1": None}, {"infra_error": 2})
    error = capsys.readouterr().err
    assert error.count("could not be run") == 2 and "HumanEval/1" in error
