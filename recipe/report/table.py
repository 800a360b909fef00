"""What the curves are drawn from, as one CSV file for tools of one's own."""

import csv
from pathlib import Path

from recipe.report import series
from recipe.report.arms import Arm, seeds

STEP_SECONDS = "timing_s/step"


def write(arms: list[Arm], path: Path) -> None:
    """Write a line for each step of each run: arm, run, seed, step, and by their names in metrics.jsonl what is drawn.

    Cells of what a step did not measure are empty.
    """
    runs = [(arm, run) for arm in arms for run in arm.runs]
    quantities = [*series.QUANTITIES, *series.validations([run for _, run in runs])]
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["arm", "run", "seed", "step", *(quantity.metric for quantity in quantities), STEP_SECONDS])
        for arm, run in runs:
            for row in run.metrics:
                values = [*(quantity.value(row) for quantity in quantities), series.finite(row.get(STEP_SECONDS))]
                cells = ["" if value is None else f"{value:.6g}" for value in values]
                table.writerow([arm.name, run.name, seeds(run), row["step"], *cells])
