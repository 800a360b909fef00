"""The wall and CPU seconds of a job, by phase, until its first request and until its end.

    python -m experiments.bench_start [--platform cpu|gpu] [--runs 3] [--steps N] [OVERRIDE...]

The job is the quickstart's. Plain (`preload=false`) and preloaded jobs take turns, so that other work on the machine
meets both. Prints seconds since the launch, of all processes of a job, and ends with their medians as a line of JSON.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil

ARMS: dict[str, tuple[str, ...]] = {"plain": ("preload=false",), "preloaded": ()}  # overrides of each kind of job
PHASES = {  # what the log says at the end of each phase; the job's own end is one more
    "config checked": "All configuration checks passed",
    "Ray started": "Started a local Ray instance",
    "policy loaded": "actor and ref model engine initialized",
    "rollout engine ready": "LLMServerManager: ",
    "first request": r"Training Progress:\s+0%",
    "step 1 done": r"\bstep:1 - ",
    "step 2 done": r"\bstep:2 - ",
}
JOB = (
    "experiment=quickstart",
    "console=log",
    "trainer.logger=[console]",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.resume_mode=disable",
)
MARK = "BENCH_START_RUN"
PERIOD_S = 0.2
Times = dict[str, tuple[float, float]]  # by phase: wall and CPU seconds from the launch to its end


def see_cpu_time(seen: dict[psutil.Process, float], mark: str) -> None:
    """Note the CPU seconds of all processes with a mark in their environment; ended ones keep what they had."""
    for process in psutil.process_iter():
        try:
            if process in seen or process.environ().get(MARK) == mark:
                times = process.cpu_times()
                seen[process] = times.user + times.system
        except psutil.Error:
            continue


def run_job(command: list[str], log: Path) -> Times:
    """Run a job; RuntimeError, with the end of its log, if it failed or a phase was not seen."""
    mark, seen, reached = uuid.uuid4().hex, dict[psutil.Process, float](), Times()
    start = time.monotonic()
    with log.open("w") as stream:
        environment = {**os.environ, MARK: mark}
        job = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=environment)
    while (code := job.poll()) is None:
        time.sleep(PERIOD_S)
        see_cpu_time(seen, mark)
        now, text = (time.monotonic() - start, sum(seen.values())), log.read_text(errors="replace")
        reached |= {name: now for name, sign in PHASES.items() if name not in reached and re.search(sign, text)}
    if code or reached.keys() != PHASES.keys():
        raise RuntimeError(f"the job ended with {code} after {list(reached)}; its log ends with:\n{text[-3000:]}")
    return {**reached, "end": now}


def medians(runs: list[Times]) -> dict[str, list[float]]:
    """Return the median wall and CPU seconds of each phase."""
    return {phase: [round(statistics.median(run[phase][n] for run in runs), 1) for n in (0, 1)] for phase in runs[0]}


def main() -> None:
    """Run the jobs and print their seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--platform", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--runs", type=int, default=3, help="of each kind of job")
    parser.add_argument("--steps", type=int, default=2, help="at least 2")
    arguments, overrides = parser.parse_known_args()
    runs: dict[str, list[Times]] = {arm: [] for arm in ARMS}
    job = [sys.executable, "-m", "recipe.online_refiner.main", *JOB, f"platform={arguments.platform}"]
    model = subprocess.check_output([sys.executable, "scripts/get_smollm2.py"], text=True).strip()
    job += [f"actor_rollout_ref.model.path={model}", f"trainer.total_training_steps={arguments.steps}"]
    with tempfile.TemporaryDirectory(prefix="bench-start-") as folder:
        for number in range(arguments.runs):
            for arm, own in ARMS.items():
                run_dir = Path(folder, f"{arm}-{number}")
                runs[arm].append(run_job([*job, *own, f"run_dir={run_dir}", *overrides], Path(f"{run_dir}.log")))
                print(f"{arm} {number + 1}: {medians(runs[arm][-1:])}", flush=True)
    print(json.dumps({arm: medians(done) for arm, done in runs.items()}))


if __name__ == "__main__":
    main()
