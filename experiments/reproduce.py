"""Run a table or figure of the paper, all arms and seeds, and put what comes of it beside the paper's numbers.

    python -m experiments.reproduce {table2_dialogue,table2_apps,table3,figure7} [OVERRIDE...] [--seeds 1 2 3]
        [--arms NAME ...] [--steps N] [--parallel 1] [--report] [--output runs/reproduce]

Each run is the main job with one preset and seed, in a folder of its own. What is complete is not run again, and what
was cut off goes on from its last checkpoint: the same command continues after any interruption. The paper's method is a
penalty, its abstract has an SFT loss: the arm `refiner` comes in both forms. Overrides hold for every run. Ends with a
table in Markdown; `--report` runs nothing and prints it of what is there. A file `pass_at_1.json` in a run's folder,
which `online-refiner evaluate --output` writes, becomes its pass@1. Data and presets: experiments/reproduce.md.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.lab import jobs
from experiments.lab.protocol import SEED_KEYS
from recipe.online_refiner import metric_names
from recipe.runs.files import read_rows

SFT = ("constraint.mode=sft", "constraint.eta=0.03")
LAST = 0.1
"""The share of a run's steps, the last ones, whose mean is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A table or figure; an arm `x` of it is the preset `<preset>_x`, the arm `refiner` the preset itself."""

    preset: str
    num_steps: int
    arms: tuple[str, ...] = ("none", "static_kl", "refiner")
    paper: dict[str, str]
    """The paper's pass@1 on HumanEval, by arm, if it is known."""

    def runs(self, seeds: Sequence[int], wanted: Sequence[str]) -> dict[str, dict[str, list[str]]]:
        """Return the overrides of each run, by arm and name of the run."""
        found: dict[str, dict[str, list[str]]] = {}
        for arm in self.arms:
            preset = self.preset if arm == "refiner" else f"{self.preset}_{arm}"
            for form, more in {"": (), "sft": SFT}.items():
                name = f"{arm}_{form}" if form else arm
                if (form and arm != "refiner") or (wanted and name not in wanted):
                    continue
                found[name] = {
                    f"{name}-seed{seed}": [f"experiment={preset}", *more, *(f"{key}={seed}" for key in SEED_KEYS)]
                    for seed in seeds
                }
        return found


EXPERIMENTS = {
    "table2_dialogue": Experiment(preset="dialogue_ppo", num_steps=430, paper={}),
    "table2_apps": Experiment(preset="apps_ppo", num_steps=200, paper={}),
    "table3": Experiment(preset="apps_dapo", num_steps=150, paper={"static_kl": "18.0", "refiner": "20.7"}),
    "figure7": Experiment(
        preset="apps_dapo", num_steps=150, arms=("refiner", "eta_1e-3", "eta_1e-2", "no_filter"), paper={}
    ),
}


def mean_of(steps: list[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a metric over those of a run's last steps that have it."""
    values = [step[name] for step in steps[-max(1, round(LAST * len(steps))) :] if step.get(name) is not None]
    return statistics.fmean(values) if values else None


def hours_of(steps: list[dict[str, Any]]) -> float:
    """Return the hours that a run's steps took."""
    return sum(step[metric_names.STEP_S] for step in steps) / 3600


COLUMNS: dict[str, Callable[[list[dict[str, Any]]], float | None]] = {
    "reward": lambda steps: mean_of(steps, metric_names.REWARD),
    "KL, nats a token": lambda steps: mean_of(steps, metric_names.KL_REF),
    "accepted": lambda steps: mean_of(steps, metric_names.IMPROVEMENT_RATIO),
    "hours": hours_of,
}


def table(experiment: Experiment, runs: dict[str, dict[str, list[str]]], folder: Path, num_steps: int) -> str:
    """Return a row for each arm: mean and standard deviation over its complete runs, and the paper's pass@1."""
    rows = [["arm", "seeds", *COLUMNS, "pass@1 HumanEval, %", "the paper's"], ["---"] * (len(COLUMNS) + 4)]
    for arm, of_arm in runs.items():
        complete = [folder / name for name in of_arm if jobs.is_complete(folder / name, num_steps)]
        steps = [list(read_rows(run / "metrics.jsonl")) for run in complete]
        cells = [_cell([column(one) for one in steps]) for column in COLUMNS.values()]
        scores = [json.loads(path.read_text()) for run in complete if (path := run / "pass_at_1.json").exists()]
        cells.append(_cell([100 * score["humaneval"] for score in scores if "humaneval" in score]))
        rows.append([f"`{arm}`", f"{len(complete)} of {len(of_arm)}", *cells, experiment.paper.get(arm, "")])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{statistics.fmean(known):.3g}" + (f" ± {statistics.stdev(known):.2g}" if len(known) > 1 else "")


def main() -> int:
    """Run the missing runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", default=[], help="some of the table's rows only")
    parser.add_argument("--steps", type=int, help="of each run (default: the paper's)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--output", type=Path, default=Path("runs/reproduce"))
    arguments, overrides = parser.parse_known_args()
    experiment = EXPERIMENTS[arguments.experiment]
    runs, num_steps = experiment.runs(arguments.seeds, arguments.arms), arguments.steps or experiment.num_steps
    if unknown := set(arguments.arms) - set(runs):
        parser.error(f"--arms: no {', '.join(sorted(unknown))}; there are {', '.join(experiment.runs([], []))}")
    folder, is_done = arguments.output.absolute() / arguments.experiment, True
    if not arguments.report:
        every = {name: [*own, *overrides] for of_arm in runs.values() for name, own in of_arm.items()}
        is_done = jobs.run_all(every, folder, num_steps, parallel=arguments.parallel)
    print(table(experiment, runs, folder, num_steps))
    return 0 if is_done else 1


if __name__ == "__main__":
    sys.exit(main())
