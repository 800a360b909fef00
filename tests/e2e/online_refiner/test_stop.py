"""Ctrl-C and SIGTERM: what a run says, how it ends, and what goes on."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest


def send(job: Any, name: str) -> None:
    """Send SIGTERM to the run alone, and Ctrl-C as a terminal does: to all of its group."""
    if name == "SIGTERM":
        job.process.send_signal(signal.SIGTERM)
        return
    group = os.getpgid(job.process.pid)
    for process in job.descendants():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group:
                process.send_signal(signal.SIGINT)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize(
    ("console", "early", "late"), [("log", "Ctrl-C", "SIGTERM"), ("progress", "SIGTERM", "Ctrl-C")]
)
def test_a_run_that_is_stopped_says_what_is_saved(
    start_marked: Callable, letters_job: list[str], tmp_path: Path, console: str, early: str, late: str
) -> None:
    command = ["-m", "recipe.online_refiner.main", "platform=cpu", f"run_dir={tmp_path}/run", *letters_job]
    command += ["trainer.total_training_steps=50", "trainer.total_epochs=99", "trainer.save_freq=1"]
    codes = {"Ctrl-C": 130, "SIGTERM": 143}

    job = start_marked([*command, f"console={console}"], cwd=tmp_path)
    job.wait_until(lambda: any("raylet" in process.info["name"] for process in job.descendants()))
    send(job, early)
    assert job.wait() == codes[early], job.output()[-3000:]
    assert job.survivors() == []
    first, second = job.output().splitlines()[-2:]
    assert first == f"stopped by {early}: nothing is saved yet (trainer.save_freq=1)"
    assert second == "the same command begins again" and "Traceback" not in job.output()

    job = start_marked([*command, f"console={console}"], cwd=tmp_path)
    tracker = tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt"
    job.wait_until(tracker.exists)
    send(job, late)
    assert job.wait() == codes[late], job.output()[-3000:]
    assert job.survivors() == []
    first, second = job.output().splitlines()[-2:]
    step = int(tracker.read_text())
    assert first == f"stopped by {late}: the run is saved up to step {step}, in {tracker.parent}"
    assert second == f"the same command goes on with step {step + 1}"
    assert "Traceback" not in job.output() and "leaked" not in job.output()
