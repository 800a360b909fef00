"""Does a real model collapse at a learning rate that is too high, and what prevents it? The rules: PROTOCOL.md.

    python -m experiments.collapse calibrate [--minutes M]    # the learning rate, with a seed that is thrown away
    python -m experiments.collapse tune [--minutes M]         # the weight of static KL, with seeds that are thrown away
    python -m experiments.collapse final [--minutes M]        # the runs that count
    python -m experiments.collapse page                       # the tables from the committed lines
    python -m experiments.collapse rehearse                   # two steps, in runs/collapse alone: does all of it work?

A run that ends is one line in ``experiments/results/collapse/PHASE.jsonl``, and its folder is deleted. The same command
goes on after any interruption; a run that was cut off begins anew. Runs are as nice as they can be; ``taskset -c 0``
before the command keeps them on one core. Ends with status 1 if a run failed.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))  # verl's wheel has a package of that name
from get_smollm2 import chat_model  # noqa: E402

from experiments.collapse import design, page, unrelated  # noqa: E402
from experiments.lab import jobs  # noqa: E402
from recipe.runs.files import read_rows  # noqa: E402

RESULTS = jobs.ROOT / "experiments" / "results" / "collapse"
FOLDER = jobs.ROOT / "runs" / "collapse"
REHEARSAL = ("trainer.test_freq=1", "trainer.save_freq=2")


def reference_model() -> Path:
    """Return the folder of the model that every run begins with."""
    return chat_model()


def line_of(job: design.Job, folder: Path) -> dict[str, Any]:
    """Return the line of a complete run."""
    rows = list(read_rows(folder / "metrics.jsonl"))
    held_out = {str(row["step"]): row[design.HELD_OUT] for row in rows if design.HELD_OUT in row}
    last = [row for row in rows if "kl_ref/k3" in row][-5:]
    (weights,) = folder.glob("checkpoints/global_step_*/actor/huggingface")
    return {
        "run": job.name,
        "arm": job.arm,
        "rate": job.rate,
        "seed": job.seed,
        "held_out": held_out,
        "kl": fmean(row["kl_ref/k3"] for row in last),
        "log_loss": unrelated.log_loss(weights, unrelated.read()),
        "step_minutes": sum(row.get("timing_s/step", 0.0) for row in rows) / 60,
    }


def run(job: design.Job, output: Path, num_steps: int = design.NUM_STEPS, more: Sequence[str] = ()) -> bool:
    """Run a job from its beginning, add its line to a file, and return whether it was completed."""
    folder = FOLDER / job.name
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was cut off
    if not jobs.run_all({job.name: [*job.overrides, *more]}, FOLDER, num_steps):
        return False
    text = json.dumps(line_of(job, folder)) + "\n"
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as file:
        file.write(text)
    shutil.rmtree(folder)
    return True


def work(phase: str, minutes: float | None) -> bool:
    """Run what a phase lacks, and return whether no run failed."""
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    while missing := missing_of(phase):
        if time.monotonic() >= deadline:
            return True
        if not run(missing[0], RESULTS / f"{phase}.jsonl"):
            return False
    return True


def missing_of(phase: str) -> list[design.Job]:
    """Return the runs of a phase that have no line yet, in their order."""
    lines = page.read(RESULTS)
    known = {line["run"] for line in lines[phase]}
    return [job for job in design.jobs_of(phase, lines) if job.name not in known]


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=(*page.PHASES, "page", "rehearse"))
    parser.add_argument("--minutes", type=float, help="no run begins after so many minutes")
    arguments = parser.parse_args()
    if arguments.phase == "page":
        print(page.tables(page.read(RESULTS)))
        return 0
    os.nice(19)
    if arguments.phase == "rehearse":
        job = design.Job("sft_1", design.RATES[0], design.CALIBRATION_SEED)
        return 0 if run(job, FOLDER / "rehearsal.jsonl", 2, REHEARSAL) else 1
    try:
        return 0 if work(arguments.phase, arguments.minutes) else 1
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
