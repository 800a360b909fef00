"""A model through vLLM to a result file, twice: greedy samples and verdicts are the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDS = [
    {
        "task_id": f"HumanEval/{index}",
        "prompt": f'def {name}(text):\n    """Return the text in {name} letters."""\n',
        "test": f"def check(candidate):\n    assert candidate('aB') == 'aB'.{name}()\n",
        "entry_point": name,
    }
    for index, name in enumerate(("upper", "lower"))
]


Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(tiny_llama: Path, tmp_path: Path, start_marked: Callable) -> Evaluate:
    """Return what evaluates the model on records and returns the result."""

    def run(records: list[dict[str, str]], *options: str) -> dict[str, Any]:
        data, output = tmp_path / "HumanEval.jsonl", tmp_path / "out.json"
        data.write_text("".join(json.dumps(record) + "\n" for record in records))
        command = ["-m", "recipe.commands", "evaluate", "--benchmark", "humaneval"]
        command += ["--data", str(data), "--model", str(tiny_llama), "--output", str(output), *options]
        job = start_marked(command, cwd=tmp_path)
        assert job.wait(300) == 0, job.output()[-6000:]
        assert job.survivors() == []
        return json.loads(output.read_text())

    return run


@pytest.mark.e2e
@pytest.mark.slow
def test_greedy_samples_are_the_same_twice(evaluate: Evaluate) -> None:
    first, second = (evaluate(RECORDS, "--max-new-tokens", "24") for _ in range(2))
    assert first["samples"] == second["samples"]
    # The model writes a, b, c, d, z and stops: a text without code.
    assert [(sample["text"], sample["verdict"]) for sample in first["samples"]] == [("abcdz", "compile_error")] * 2
    assert first["pass_at_k"] == {"pass@1": 0.0}
    assert first["sampling"]["temperature"] == 0.0
    assert first["prompt"].startswith("<|im_start|>user\n") and RECORDS[0]["prompt"].strip() in first["prompt"]


@pytest.mark.e2e
@pytest.mark.slow
def test_samples_are_drawn_for_more_prompts_than_fit_one_forward_pass(evaluate: Evaluate) -> None:
    tasks = [{**RECORDS[0], "task_id": f"HumanEval/{index}"} for index in range(64)]
    found = evaluate(tasks, "--max-new-tokens", "4", "--num-samples", "4", "--temperature", "2")
    texts = [sample["text"] for sample in found["samples"]]
    assert len(texts) == 256 and len(set(texts)) > 1
