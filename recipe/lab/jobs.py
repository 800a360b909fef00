"""Runs of the main job, one after the other or side by side, each in a folder of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import psutil

from recipe.runs.files import read_rows

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 20.0
"""What a run that is ended has to end its processes."""


def is_complete(run_dir: Path, num_steps: int) -> bool:
    """Tell whether a run has done all its steps."""
    path = run_dir / "metrics.jsonl"
    return path.exists() and max((row["step"] for row in read_rows(path)), default=0) >= num_steps


def run_all(
    runs: Mapping[str, Sequence[str]],
    folder: Path,
    num_steps: int,
    *,
    parallel: int = 1,
    minutes: float | None = None,
    prefix: Sequence[str] = (),
    on_complete: Callable[[str], None] = lambda name: None,
) -> bool:
    """Run what is not complete, and return whether all is; what was cut off goes on from its last checkpoint.

    Args:
        runs: Overrides of each run, by its name.
        folder: Of the run directories; a run's log stands beside its own.
        num_steps: Of each.
        parallel: So many at a time.
        minutes: After that nothing begins, and what is running is ended. None: no limit.
        prefix: Stands before each run's command, as ``unshare`` does for runs that must not share ``/tmp``.
        on_complete: Called with each complete run's name.
    """
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    # Threads that wait for a core spin: runs beside each other share the cores.
    num_threads = max(1, len(os.sched_getaffinity(0)) // parallel)
    environment = {"OMP_NUM_THREADS": str(num_threads), **os.environ}

    def one(name: str) -> bool:
        command = [*prefix, sys.executable, "-m", "recipe.online_refiner.main", *runs[name]]
        command += [f"run_dir={folder / name}", f"trainer.experiment_name={name}"]
        command += [f"trainer.total_training_steps={num_steps}"]
        return _run(command, folder / name, num_steps, environment, deadline)

    with ThreadPoolExecutor(parallel) as pool:
        jobs = {pool.submit(one, name): name for name in runs}
        for job in as_completed(jobs):
            if job.result():
                on_complete(jobs[job])
    return all(job.result() for job in jobs)


def _run(command: list[str], run_dir: Path, num_steps: int, environment: dict[str, str], deadline: float) -> bool:
    if is_complete(run_dir, num_steps):
        return True
    started = time.monotonic()
    if started >= deadline:
        return False
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    left = None if deadline == float("inf") else deadline - started
    with Path(f"{run_dir}.log").open("a") as log:
        job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
        try:
            job.wait(left)
        except subprocess.TimeoutExpired:
            _end(job.pid)
    is_done, is_late = is_complete(run_dir, num_steps), time.monotonic() >= deadline
    said = "done" if is_done else "cut off" if is_late else f"FAILED, see {log.name}"
    print(f"{run_dir.name}: {said} ({(time.monotonic() - started) / 60:.1f} min)", flush=True)
    return is_done


def _end(pid: int) -> None:
    """End a process and all that it has started: first politely, so that Ray ends its own."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    processes[0].terminate()
    _, left = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in left:
        process.kill()
