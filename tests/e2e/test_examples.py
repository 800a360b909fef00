"""Each example's one command: its checks, and two steps of training, or what it writes."""

import subprocess
from pathlib import Path

import pandas
import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted({path.parent.name for path in (REPOSITORY / "examples").glob("*/run.sh")} - {"refine", "images"})
"""The examples that train on CPUs."""
OFTEN = "own_verifier"


def command(example: str, *overrides: str) -> str:
    """Run an example and return what it printed."""
    script = ["bash", f"examples/{example}/run.sh", *overrides]
    done = subprocess.run(script, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.mark.e2e
@pytest.mark.parametrize(
    "example", [one if one == OFTEN else pytest.param(one, marks=pytest.mark.slow) for one in EXAMPLES]
)
def test_the_checks(example: str, tmp_path: Path) -> None:
    plan = command(example, f"run_dir={tmp_path}/run", "dry_run=true")
    assert f"run directory  {tmp_path}/run" in plan and "1 vllm replicas, colocated" in plan
    assert not (tmp_path / "run").exists(), "a dry run starts and writes nothing"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_two_steps(example: str, tmp_path: Path) -> None:
    command(example, f"run_dir={tmp_path}")
    steps = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(steps) == 2
    assert example != "own_trainer" or all('"mine/num_rows"' in step for step in steps)


@pytest.mark.e2e
@pytest.mark.slow
def test_refined_answers_are_written_by_a_real_engine(tmp_path: Path) -> None:
    said = command("refine", "--output", str(tmp_path))
    rows = pandas.read_parquet(tmp_path / "all.parquet")
    better = rows[rows["verdict"] == "accepted"]
    assert len(rows) == 48 and "all.parquet: 48 rows" in said
    assert len(better) > 0 and (better["refined_reward"] > better["reward"]).all()
    assert len(pandas.read_parquet(tmp_path / "sft.parquet")) == len(better)
    again = command("refine", "--output", str(tmp_path), "--jsonl")
    assert "loading the model" not in again and len((tmp_path / "all.jsonl").read_text().splitlines()) == 48
