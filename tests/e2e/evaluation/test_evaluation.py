"""A model's answers to small files of problems, by evalplus as a user runs it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.evaluation.command import DATA


def problem(task_id: str, name: str, body: str) -> dict[str, Any]:
    """Return a problem whose prompt is a whole function: an answer that adds letters behind it changes nothing."""
    return {
        "task_id": task_id,
        "prompt": f"def {name}(text):\n    return {body}\n",
        "canonical_solution": f"\ndef {name}(text):\n    return text.upper()\n",
        "entry_point": name,
        "contract": "",
        "base_input": [["AB"]],
        "plus_input": [["cd"]],
        "atol": 0,
    }


@pytest.mark.e2e
@pytest.mark.parametrize("datasets", [["humaneval"], pytest.param([*DATA], marks=pytest.mark.slow)], ids=len)
def test_a_model_on_the_benchmarks(
    datasets: list[str], tiny_llama: Path, tmp_path: Path, start_marked: Callable
) -> None:
    pytest.importorskip("evalplus")
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for dataset in datasets:
        kind, variable = {"humaneval": "HumanEval", "mbpp": "Mbpp"}[dataset], DATA[dataset]
        rows = [problem(f"{kind}/2000", "upper", "text.upper()"), problem(f"{kind}/2001", "same", "text")]
        file = tmp_path / f"{dataset}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        environment[variable] = str(file)
    command = [
        "-m",
        "recipe.commands",
        "evaluate",
        "--model",
        str(tiny_llama),
        "--output",
        "out",
        "--force-base-prompt",
        *(["--dataset", *datasets] if datasets != [*DATA] else []),
    ]
    job = start_marked(command, cwd=tmp_path, environment=environment)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    rates = json.loads((tmp_path / "out" / "pass_at_1.json").read_text())
    assert rates == {name: rate for dataset in datasets for name, rate in ((dataset, 1.0), (f"{dataset}+", 0.5))}
    assert "written to out" in job.output()
