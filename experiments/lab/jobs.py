"""Runs of the main job, one after the other or side by side, each in a folder of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

import psutil

from recipe.runs.files import read_rows

ROOT = Path(__file__).resolve().parents[2]
PRESETS = f"--config-dir={ROOT / 'experiments' / 'config'}"
"""The option by which Hydra finds the experiments' own presets beside the package's presets."""
POLL_S, GRACE_S = 0.5, 20.0
"""Seconds between two looks at a run, and seconds that an ended run has to end its processes."""


def is_complete(run_dir: Path, num_steps: int) -> bool:
    """Return whether a run has done all its steps."""
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
    is_done: Callable[[Path], bool] = lambda run_dir: True,
    on_complete: Callable[[str], None] = lambda name: None,
) -> bool:
    """Run all incomplete runs, and return whether all are complete; a run that was cut off resumes from a checkpoint.

    Running runs are ended whenever this call ends.

    Args:
        runs: The overrides of each run, by its name.
        folder: The folder of the run directories; each run's log is beside its directory.
        num_steps: The number of steps of each run.
        parallel: The number of runs at the same time.
        minutes: The time limit, after which no run begins and running ones are ended. None: no limit.
        prefix: Words before each run's command, such as ``unshare`` for runs that must not share ``/tmp``.
        is_done: A further condition, beside its steps, for a run directory to be complete.
        on_complete: A function called with each complete run's name.
    """
    deadline, stops = float("inf") if minutes is None else time.monotonic() + 60 * minutes, Event()
    # Threads that wait for a core spin: runs beside each other share the cores.
    num_threads = max(1, len(os.sched_getaffinity(0)) // parallel)
    environment = {"OMP_NUM_THREADS": str(num_threads), **os.environ}

    def is_there(run_dir: Path) -> bool:
        return is_complete(run_dir, num_steps) and is_done(run_dir)

    def is_over() -> bool:
        return stops.is_set() or time.monotonic() >= deadline

    def one(name: str) -> bool:
        run_dir, started = folder / name, time.monotonic()
        if is_there(run_dir):
            return True
        if is_over():
            return False
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        log = Path(f"{run_dir}.log")
        is_cut = _run([*prefix, *_command(name, run_dir, num_steps, runs[name])], log, environment, is_over)
        done = is_there(run_dir) and not is_cut
        said = "done" if done else f"{'cut off' if is_cut else 'FAILED'}, see {log}"
        print(f"{name}: {said} ({(time.monotonic() - started) / 60:.1f} min)", flush=True)
        return done

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ThreadPoolExecutor(parallel) as pool:
        try:
            jobs = {pool.submit(one, name): name for name in runs}
            for job in as_completed(jobs):
                if job.result():
                    on_complete(jobs[job])
        finally:
            stops.set()
    return all(job.result() for job in jobs)


def _command(name: str, run_dir: Path, num_steps: int, overrides: Sequence[str]) -> list[str]:
    """Return the command of a run."""
    quoted = str(run_dir).replace("'", r"\'")  # for Hydra
    return [
        sys.executable,
        "-m",
        "recipe.online_refiner.main",
        PRESETS,
        *overrides,
        f"run_dir='{quoted}'",
        f"trainer.experiment_name={name}",
        f"trainer.total_training_steps={num_steps}",
    ]


def _run(command: list[str], log: Path, environment: dict[str, str], is_over: Callable[[], bool]) -> bool:
    """Run a command to its end, and return whether it had to be ended earlier by the time limit."""
    with log.open("a") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT}
        job = psutil.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **streams)
        while job.poll() is None and not is_over():
            time.sleep(POLL_S)
        if job.poll() is not None:
            return False
        end(job)
        return True


def end(job: psutil.Process) -> None:
    """End a session's leader and all processes that it started: first politely, so that Ray ends its own."""
    processes = [job, *job.children(recursive=True)]
    job.terminate()
    _, left = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ProcessLookupError):  # what began meanwhile
        os.killpg(job.pid, signal.SIGKILL)
    psutil.wait_procs(left, timeout=GRACE_S)
