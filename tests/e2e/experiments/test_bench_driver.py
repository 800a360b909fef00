"""The driver's benchmark runs: it uses the stages as the trainer does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.e2e
@pytest.mark.slow
def test_a_small_step(smollm2: Path) -> None:
    command = [sys.executable, "-m", "experiments.bench_driver", "--responses", "16", "--tokens", "64"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["driver_cpu_s"] > 0
