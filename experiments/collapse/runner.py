"""Does one run of the trainer at a time, and makes its line."""

import contextlib
import json
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from experiments.collapse import design, page, unrelated
from experiments.lab import jobs
from recipe.online_refiner import metric_names
from recipe.runs.files import read_rows

FOLDER = jobs.ROOT / "runs" / "collapse"
REHEARSAL = ("trainer.test_freq=1", "trainer.save_freq=2")
PERIOD_S = 10.0
"""Seconds between two looks at the CPU time of a run's processes."""


class CpuClock(threading.Thread):
    """Counts the CPU seconds of all processes below this one; of a process that ends, up to the last look at it."""

    def __init__(self) -> None:
        """Count from now on."""
        super().__init__(daemon=True)
        self._seen: dict[psutil.Process, float] = {}
        self._stops = threading.Event()
        self.start()

    def run(self) -> None:
        """Look at the processes until the clock is stopped."""
        while not self._stops.wait(PERIOD_S):
            self._look()

    def stop(self) -> float:
        """Stop, and return the CPU seconds."""
        self._stops.set()
        self.join()
        self._look()
        return sum(self._seen.values())

    def _look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                times = process.cpu_times()
                self._seen[process] = times.user + times.system


def solved(path: Path) -> dict[str, float]:
    """Return the share of right answers, and how many answers there are, in a validation that verl has written.

    Raises:
        ValueError: If it does not have the planned number of answers.
    """
    scores = [row["acc"] for row in read_rows(path)]
    planned = design.NUM_HELD_OUT * design.START_ANSWERS
    if len(scores) != planned:
        raise ValueError(f"{path} has {len(scores)} answers, where {planned} are planned: run the same command again")
    return {"solved": round(fmean(scores), 4), "answers": len(scores)}


def held_out_of(rows: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> dict[str, float]:
    """Return the validations of a run by their steps.

    Args:
        rows: The metrics of the run's steps.
        steps: The steps after which validations are planned.

    Raises:
        ValueError: If the run has other validations than these.
    """
    found = {row["step"]: row[design.HELD_OUT] for row in rows if row.get(design.HELD_OUT) is not None}
    if sorted(found) != sorted(steps):
        raise ValueError(
            f"the run has validations after the steps {sorted(found)}, where {sorted(steps)} are planned: "
            "run the same command again"
        )
    return {str(step): share for step, share in found.items()}


def line_of(job: design.Job, folder: Path, start: float, steps: Sequence[int] = design.VALIDATIONS) -> dict[str, Any]:
    """Return the line of a complete run, without its CPU seconds.

    Args:
        job: The run.
        folder: The run's folder.
        start: The share of held-out questions that the reference model solves.
        steps: The steps after which validations are planned.

    Raises:
        ValueError: If the run has other validations than these.
    """
    rows = list(read_rows(folder / "metrics.jsonl"))
    held_out = held_out_of(rows, steps)
    last = [row[metric_names.KL_REF] for row in rows][-5:]
    (weights,) = folder.glob("checkpoints/global_step_*/actor/huggingface")
    return {
        "run": job.name,
        "arm": job.arm,
        "rate": job.rate,
        "seed": job.seed,
        "start": start,
        "held_out": held_out,
        "kl": round(fmean(last), 4),
        "log_loss": round(unrelated.log_loss(weights, unrelated.read()), 4),
        "tokens": round(sum(row[metric_names.TOKENS_ROLLOUT] + row.get(metric_names.TOKENS_REFINE, 0) for row in rows)),
    }


def code() -> str:
    """Return the hash of the committed trainer, by which lines of different trainers are found."""
    command = ["git", "rev-parse", "--short=12", "HEAD:recipe"]
    return subprocess.run(command, cwd=jobs.ROOT, check=True, capture_output=True, text=True).stdout.strip()


def train(name: str, overrides: Sequence[str], num_steps: int) -> float | None:
    """Run the trainer from the beginning, and return its CPU seconds; None if it failed."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)  # of a run that was cut off
    clock = CpuClock()
    done = jobs.run_all({name: overrides}, FOLDER, num_steps)
    seconds = clock.stop()
    return seconds if done else None


def run(job: design.Job, output: Path, *, commits: bool) -> bool:
    """Do a run, add its line to a file, and return whether it was completed."""
    start = page.read_start(page.RESULTS)
    assert start is not None, "the reference model is measured first"
    seconds = train(job.name, job.overrides, design.NUM_STEPS)
    if seconds is None:
        return False
    line = {**line_of(job, FOLDER / job.name, start["solved"]), "cpu_s": round(seconds), "code": code()}
    with output.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    _finish(job.name, output, commits=commits)
    return True


def measure_start(*, commits: bool) -> bool:
    """Measure the share of held-out questions that the reference model solves, and return whether that was done."""
    job = design.Job("none", design.RATES[0], design.START_SEED)
    if train(job.name, [*job.overrides, *design.START], num_steps=1) is None:
        return False
    path = page.RESULTS / page.START
    path.write_text(json.dumps(solved(FOLDER / job.name / "validation" / "0.jsonl")) + "\n", encoding="utf-8")
    _finish(job.name, path, commits=commits)
    return True


def rehearse() -> bool:
    """Do a run of two steps, and print its line."""
    job = design.Job("sft_1", design.RATES[0], design.START_SEED)
    seconds = train(job.name, [*job.overrides, *REHEARSAL], num_steps=2)
    if seconds is not None:
        print({**line_of(job, FOLDER / job.name, start=0.0, steps=(1, 2)), "cpu_s": round(seconds)})
    return seconds is not None


def _finish(name: str, output: Path, *, commits: bool) -> None:
    """Delete a run's folder once its line is written, and commit the line if that is asked for."""
    if commits:
        subprocess.run(["git", "add", str(output)], cwd=jobs.ROOT, check=True)
        subprocess.run(
            ["git", "commit", "--quiet", "-m", f"Results: collapse, {name}", "--", str(output)],
            cwd=jobs.ROOT,
            check=True,
        )
    shutil.rmtree(FOLDER / name)
