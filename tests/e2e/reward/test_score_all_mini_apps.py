"""From the generator through the data files to the score: every reference solution of every problem passes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.e2e
@pytest.mark.parametrize("per_family", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_every_reference_solution_scores_one(tmp_path: Path, per_family: int) -> None:
    prepare = [sys.executable, "scripts/prepare_data.py", "mini-apps", "--output", str(tmp_path)]
    prepare += ["--problems-per-family", str(per_family)]
    subprocess.run(prepare, cwd=REPOSITORY, check=True, capture_output=True)
    files = ["--problems", str(tmp_path / "problems.jsonl"), "--solutions", str(tmp_path / "solutions.jsonl")]
    limits = ["--workers", "2", "--timeout", "30"]
    scored = subprocess.run(
        [sys.executable, "-m", "reward.score", *files, *limits], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert scored.returncode == 0, scored.stderr
    results = [json.loads(line) for line in scored.stdout.splitlines()]
    assert len(results) == 34 * per_family
    assert [result for result in results if (result["score"], result["outcome"]) != (1.0, "pass")] == []
