"""A run loses nothing in silence: a second start in its folder, a killed trainer or command, and a full disk."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from recipe.runs.files import read_rows
from recipe.runs.lock import COMMAND
from recipe.runs.stop import TRACKER

NUM_STEPS = 4
DISK_KIB = 1500


def command(run_dir: Path, letters_job: list[str], *overrides: str) -> list[str]:
    """Return a run that saves each step."""
    return [
        "-m",
        "recipe.online_refiner.main",
        "platform=cpu",
        f"run_dir={run_dir}",
        *letters_job,
        f"trainer.total_training_steps={NUM_STEPS}",
        "trainer.total_epochs=9",
        "trainer.save_freq=1",
        *overrides,
    ]


def told(job: Any) -> str:
    """Return the one line that a job ends with, which is no traceback of Hydra's."""
    output = job.output()
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert "HYDRA_FULL_ERROR" not in output and "Error executing job" not in output
    return str(line)


def saved(run_dir: Path) -> int:
    """Return the step of the last checkpoint."""
    tracker = run_dir / "checkpoints" / TRACKER
    return int(tracker.read_text() or 0) if tracker.exists() else 0


def check_all_steps(run_dir: Path, last: int) -> None:
    """Check that each step's metrics are there once, and that the last one is saved."""
    assert [step["step"] for step in read_rows(run_dir / "metrics.jsonl")] == list(range(1, last + 1))
    assert saved(run_dir) == last


@pytest.mark.e2e
@pytest.mark.slow
def test_one_writer_and_a_killed_trainer_and_a_killed_command(
    start_marked: Callable, letters_job: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    same = command(run_dir, letters_job)
    first = start_marked(same, cwd=tmp_path)
    lock = run_dir / COMMAND
    first.wait_until(lambda: lock.exists() and lock.read_text() != "", 300)
    second = start_marked(same, cwd=tmp_path)
    assert second.wait(300) == 2, second.output()[-3000:]
    assert f"run_dir={run_dir}: another process writes there (process {first.process.pid} on " in told(second)
    assert second.survivors() == []

    first.wait_until(lambda: saved(run_dir) > 0, 600)
    (trainer,) = (one for one in first.descendants() if re.search(r"ray::TaskRunner", one.name()))
    trainer.kill()
    assert first.wait(120) == 1, first.output()[-6000:]
    step = saved(run_dir)
    assert "error: the process that trains (TaskRunner) has died (" in told(first)
    assert told(first).endswith(f"goes on with step {step + 1}, from the checkpoint in {run_dir}/checkpoints.")
    assert first.survivors() == []

    third = start_marked(same, cwd=tmp_path)
    third.wait_until(lambda: saved(run_dir) > step, 600)
    os.kill(third.process.pid, 9)  # the command alone: Ray ends the rest
    fourth = start_marked(same, cwd=tmp_path)
    assert fourth.wait(900) == 0, fourth.output()[-6000:]
    psutil.wait_procs(third.descendants(), timeout=60)
    assert third.survivors() == [] and fourth.survivors() == []
    check_all_steps(run_dir, NUM_STEPS)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a file system of its own that has little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(folder)])
    if mounted.returncode:
        pytest.skip("this machine mounts nothing for this user")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("console", ["log", "progress"])
def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(
    start_marked: Callable, letters_job: list[str], tmp_path: Path, small_disk: Path, console: str
) -> None:
    run_dir = small_disk / "run"
    same = command(run_dir, letters_job, f"console={console}")
    job = start_marked(same, cwd=tmp_path)
    assert job.wait(600) == 1, job.output()[-6000:]
    step = saved(run_dir)
    line = told(job)
    assert "error: a disk is full (" in line and f"={run_dir}" in line and " MiB left. Make room there" in line
    assert (f"goes on with step {step + 1}" if step else "begins again") in line
    assert job.survivors() == []

    subprocess.run(["mount", "-o", "remount,size=256m", str(small_disk)], check=True)
    job = start_marked(same, cwd=tmp_path)
    assert job.wait(600) == 0, job.output()[-6000:]
    assert job.survivors() == []
    check_all_steps(run_dir, NUM_STEPS)


@pytest.mark.e2e
@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_read_is_named_with_the_one_before_it(
    start_marked: Callable, letters_job: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    same = command(run_dir, letters_job)
    job = start_marked([*same, "trainer.total_training_steps=2"], cwd=tmp_path)
    assert job.wait(600) == 0, job.output()[-6000:]
    first, last = (run_dir / "checkpoints" / f"global_step_{step}" for step in (1, 2))
    torch.save({}, last / "actor" / "model_world_size_1_rank_0.pt")  # whole, and of no model
    job = start_marked(same, cwd=tmp_path)
    assert job.wait(600) == 1, job.output()[-6000:]
    line = told(job)
    assert line.startswith(f"error: the checkpoint {last} cannot be read (")
    remedy = f"add trainer.resume_mode=resume_path trainer.resume_from_path={first}"
    assert line.endswith(remedy)
    assert job.survivors() == []
    job = start_marked([*same, *remedy.split()[1:]], cwd=tmp_path)
    assert job.wait(600) == 0, job.output()[-6000:]
    assert job.survivors() == []
    check_all_steps(run_dir, NUM_STEPS)


ODD_REWARDS = """
import asyncio, math, zlib
import numpy as np

def fail(error):
    raise error

ODD = [
    lambda: fail(SystemExit(3)),
    lambda: fail(KeyboardInterrupt()),
    lambda: next(iter([])),
    lambda: None,
    lambda: "0.5",
    lambda: math.nan,
    lambda: {"reward": 1.0},
    lambda: fail(asyncio.CancelledError()),
]

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    number = zlib.crc32(solution_str.encode()) % 32
    return ODD[number]() if number < len(ODD) else np.float32(number / 32)
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_odd_rewards_cost_their_own_rollouts(start_marked: Callable, letters_job: list[str], tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD_REWARDS)
    own = [f"reward.custom_reward_function.path={tmp_path}/odd.py", "reward.num_workers=2", "trainer.test_freq=2"]
    job = start_marked(command(tmp_path / "run", letters_job, *own), cwd=tmp_path)
    assert job.wait(900) == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert [step["step"] for step in steps] == list(range(1, NUM_STEPS + 1))
    assert sum(step["reward/num_lost"] for step in steps) > 0
    assert all(0.25 <= step["reward/mean"] < 1 for step in steps)
