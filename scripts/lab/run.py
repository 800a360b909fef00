"""Run the lab's experiments, and report them.

    python scripts/lab/run.py [--algorithms dapo] [--arms none penalty ...] [--seeds 1 2 3] [--parallel 1] [OVERRIDE...]
    python scripts/lab/run.py --quick      # two arms, one seed, few steps

Each is a run of the main job (`experiment=lab`) in its own folder. What is complete is not run again, what was cut off
goes on from its last checkpoint, so the same command continues after any interruption. Overrides hold for every run;
with others choose another `--output`. Ends with a report of these runs, and with status 1 if one of them failed.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recipe.lab.arms import ALGORITHMS, ARMS
from recipe.online_refiner.run_dir import read_rows

ROOT = Path(__file__).resolve().parents[2]

NUM_STEPS, NUM_QUICK_STEPS = 20, 6
SEED_KEYS = ("data.seed", "actor_rollout_ref.rollout.seed", "actor_rollout_ref.actor.data_loader_seed")
QUICK_ARMS = ["none", "penalty"]
NUM_BASE_EXAMPLES, NUM_QUICK_BASE_EXAMPLES = 24_000, 8_000


def make_base_model(folder: Path, num_examples: int) -> None:
    """Make the base model unless it is there."""
    if not (folder / "rates.json").exists():
        script = ROOT / "scripts" / "lab" / "make_base_model.py"
        subprocess.run([sys.executable, script, "--output", folder, "--examples", str(num_examples)], check=True)


def is_complete(run_dir: Path, num_steps: int) -> bool:
    """Tell whether a run has done all its steps."""
    metrics = run_dir / "metrics.jsonl"
    return metrics.exists() and sum(1 for _ in read_rows(metrics)) >= num_steps


def run(run_dir: Path, overrides: list[str], num_steps: int, environment: dict[str, str]) -> bool:
    """Run one job unless it is complete; return whether it is."""
    if is_complete(run_dir, num_steps):
        return True
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with Path(f"{run_dir}.log").open("a") as log:
        command = [sys.executable, "-m", "recipe.online_refiner.main", "experiment=lab", *overrides]
        command += [f"run_dir={run_dir}", f"trainer.experiment_name={run_dir.name}"]
        command += [f"trainer.total_training_steps={num_steps}"]
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment)
    done = is_complete(run_dir, num_steps)
    minutes = (time.monotonic() - started) / 60
    print(f"{run_dir.name}: {'done' if done else 'FAILED, see ' + log.name} ({minutes:.1f} min)", flush=True)
    return done


def main() -> int:
    """Run what is missing, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=["dapo"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; each takes about 9 GB of memory")
    parser.add_argument("--output", type=Path, help="folder (default: runs/lab, or runs/lab_quick)")
    parser.add_argument("--quick", action="store_true", help="two arms, one seed, few steps")
    arguments, overrides = parser.parse_known_args()
    if arguments.quick:
        arguments.arms, arguments.seeds, arguments.steps = QUICK_ARMS, [1], NUM_QUICK_STEPS
    output = (arguments.output or Path("runs/lab_quick" if arguments.quick else "runs/lab")).absolute()
    base = output / "base"
    make_base_model(base, NUM_QUICK_BASE_EXAMPLES if arguments.quick else NUM_BASE_EXAMPLES)
    overrides += [f"actor_rollout_ref.model.path={base}"]
    overrides += [f"data.{split}_files={base / split}.parquet" for split in ("train", "val")]
    jobs: dict[Path, list[str]] = {}
    for seed, algorithm, arm in itertools.product(arguments.seeds, arguments.algorithms, arguments.arms):
        seeds = [f"{key}={seed}" for key in SEED_KEYS]
        jobs[output / f"{algorithm}-{arm}-seed{seed}"] = [*ALGORITHMS[algorithm], *ARMS[arm], *seeds, *overrides]
    # Threads that wait for a core spin: runs beside each other share the cores.
    num_threads = max(1, len(os.sched_getaffinity(0)) // arguments.parallel)
    environment = {"OMP_NUM_THREADS": str(num_threads), **os.environ}
    with ThreadPoolExecutor(arguments.parallel) as pool:
        done = list(pool.map(lambda run_dir: run(run_dir, jobs[run_dir], arguments.steps, environment), jobs))
    report = [sys.executable, ROOT / "scripts" / "report.py", *jobs, "--output", output / "report.html"]
    reported = subprocess.run(report).returncode == 0
    return 0 if reported and all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
