"""The smoke test as far as it goes without a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]


def smoke(output: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "recipe.commands", "smoke", "--platform", "cpu", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.e2e
@pytest.mark.slow
def test_every_placement_is_right(tmp_path: Path) -> None:
    done = smoke(tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "PASS: 4 right, 0 wrong"
    summary = json.loads((tmp_path / "smoke.json").read_text())
    assert {name: len(steps) for name, steps in summary["steps"].items()} == {
        "colocated": 3,
        "resumed, sft": 3,
        "dedicated": 3,
        "shared": 3,
    }
    assert all(
        step[f"memory_gb/{moment}"] > 0.1 for step in summary["steps"]["dedicated"] for moment in ("rollout", "refine")
    )


@pytest.mark.e2e
@pytest.mark.slow
def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    """A learning rate of 0: nothing that a sync could show. On one logical GPU, what needs two is left out."""
    done = smoke(tmp_path, "--gpus", "1", "actor_rollout_ref.actor.optim.lr=0", "trainer.total_training_steps=3")
    assert done.returncode == 1
    *_, verdict = done.stdout.splitlines()
    assert verdict.startswith("FAIL: 0 right, 2 wrong, left out") and verdict.endswith(": resumed, sft, dedicated")
    assert "colocated: KL to the reference at the end is" in done.stdout
