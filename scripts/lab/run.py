"""Run the lab's experiment, phase by phase, and report it.

    python scripts/lab/run.py calibrate     # which learning rate
    python scripts/lab/run.py tune          # which weight, for each method
    python scripts/lab/run.py final         # the comparison

    [--only NAME ...] [--parallel 1] [--output FOLDER] [--protocol FILE] [OVERRIDE...]

Each run is one of the main job, with the protocol's preset (`experiment=lab`, whose base model and problems stand in
docs/results/lab_base), in its own folder. Its metrics are added to a file beside the protocol (`lab_final.csv`) when it
is complete; what is there is not run again, what was cut off goes on from its last checkpoint, so the same command
continues after any interruption. A phase that is complete writes what it has chosen into the protocol
(`recipe/lab/protocol.py`), which the next one reads. Overrides hold for every run; with others choose another
`--output` and `--protocol`. Ends with a report of the runs whose folders are there, and with status 1 if one failed.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from recipe.lab import metrics, protocol
from recipe.runs.files import read_rows

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = ROOT / "docs" / "results" / "lab.yaml"
BASE = PROTOCOL.with_name("lab_base")


def is_complete(run_dir: Path, num_steps: int) -> bool:
    """Tell whether a run has done all its steps."""
    path = run_dir / "metrics.jsonl"
    return path.exists() and max((row["step"] for row in read_rows(path)), default=0) >= num_steps


def run(run_dir: Path, overrides: list[str], num_steps: int, environment: dict[str, str]) -> bool:
    """Run one job unless it is complete; return whether it is."""
    if is_complete(run_dir, num_steps):
        return True
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with Path(f"{run_dir}.log").open("a") as log:
        command = [sys.executable, "-m", "recipe.online_refiner.main", *overrides]
        command += [f"run_dir={run_dir}", f"trainer.experiment_name={run_dir.name}"]
        command += [f"trainer.total_training_steps={num_steps}"]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
    done = is_complete(run_dir, num_steps)
    minutes = (time.monotonic() - started) / 60
    print(f"{run_dir.name}: {'done' if done else 'FAILED, see ' + log.name} ({minutes:.1f} min)", flush=True)
    return done


def choose(rules: protocol.Protocol, phase: str, path: Path) -> None:
    """Complete the protocol by what a phase has found."""
    found = {name: rules.held_out_of(steps) for name, steps in metrics.read(metrics.path_of(path, phase)).items()}
    if phase == "calibrate":
        rules.learning_rate = rules.choose_learning_rate(found)
        print(f"learning rate: {rules.learning_rate:g}")
    elif phase == "tune":
        rules.learn_from_tuning(found)
        print(f"weights: {rules.weights}")
    protocol.write(rules, path)


def main() -> int:
    """Run what is missing, choose, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("phase", choices=["calibrate", "tune", "final"])
    parser.add_argument("--only", nargs="+", default=[], help="runs whose names begin so")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; each takes about 9 GB of memory")
    parser.add_argument("--output", type=Path, default=Path("runs/lab"))
    parser.add_argument("--protocol", type=Path, default=PROTOCOL)
    arguments, overrides = parser.parse_known_args()
    output, path = arguments.output.absolute(), arguments.protocol
    rules = protocol.read(path)
    try:
        runs = dict(rules.runs(arguments.phase))
    except ValueError as error:
        parser.error(str(error))
    overrides.insert(0, f"experiment={rules.experiment}")
    fingerprint = metrics.fingerprint(BASE) if rules.experiment == protocol.Protocol().experiment else ""
    folder = output / arguments.phase
    collected = metrics.path_of(path, arguments.phase)
    known = metrics.read(collected)
    wanted = [name for name in runs if name.startswith(tuple(arguments.only) or "") and name not in known]
    # Threads that wait for a core spin: runs beside each other share the cores.
    num_threads = max(1, len(os.sched_getaffinity(0)) // arguments.parallel)
    environment = {"OMP_NUM_THREADS": str(num_threads), **os.environ}
    with ThreadPoolExecutor(arguments.parallel) as pool:
        jobs = {
            pool.submit(run, folder / name, [*runs[name], *overrides], rules.num_steps, environment): name
            for name in wanted
        }
        for job in as_completed(jobs):
            if job.result():
                steps = read_rows(folder / jobs[job] / "metrics.jsonl")
                metrics.add(collected, jobs[job], steps, rules.held_out, fingerprint)
    all_done = all(job.result() for job in jobs)
    if metrics.read(collected).keys() >= runs.keys():
        choose(rules, arguments.phase, path)
    folders = [folder / name for name in runs if (folder / name).is_dir()]
    report = [sys.executable, "-m", "recipe.report", *folders, "--output", folder / "report.html"]
    reported = not folders or subprocess.run(report, cwd=ROOT).returncode == 0
    return 0 if reported and all_done else 1


if __name__ == "__main__":
    sys.exit(main())
