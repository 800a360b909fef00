"""A whole run on a pseudo-terminal: what it shows from the start to the end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import on_terminal

PARTS = [
    "importing torch, verl and vLLM",
    "checking config, data and models",
    "starting Ray",
    "reading data",
    "loading the policy",
    "starting the rollout's engine",
    "starting the refiner's engine",
    "giving the policy's weights to its engine",
]
STAGES = {"the policy answers", "the refiner rewrites", "log-probs", "the policy learns"}


@pytest.mark.e2e
@pytest.mark.slow
def test_a_run_says_what_it_does_from_the_start_to_the_end(letters_job: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recipe.commands", "train", "platform=cpu", *letters_job, "console=progress"]
    command += [f"run_dir={tmp_path}/run", "trainer.save_freq=-1", "trainer.total_training_steps=2"]
    environment = {**os.environ, "COLUMNS": "120"}

    def run(terminal: int) -> None:
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=terminal, stderr=terminal)
        assert done.returncode == 0

    shown = on_terminal(run)
    parts = re.findall(r"^ +\d+:\d\d  (.*?) *$", shown, flags=re.MULTILINE)
    assert parts[:3] == PARTS[:3] and parts == [part for part in PARTS if part in parts], "each once, in order"
    assert {"loading the policy", "starting the rollout's engine"} <= set(parts), "others may be too short to be seen"
    assert re.findall(r"^step +(\d/\d)  reward .* \d+ s *$", shown, flags=re.MULTILINE) == ["1/2", "2/2"]
    seen = set(re.findall(r"step [12]/2: (.*?), \d+ s", shown))
    assert seen and seen <= STAGES
    assert f"{tmp_path}/run/report.html" in shown and (tmp_path / "run" / "report.html").exists()
    assert "next: online-refiner check" in shown.splitlines()[-1]
