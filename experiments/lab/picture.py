"""Draw the README's picture from committed runs: held-out results of three arms, and how often a refinement is better.

Usage: ``python -m experiments.lab.picture [experiments/results/fading.png]``
"""

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.lab import findings, metrics

RESULTS = Path(__file__).resolve().parents[1] / "results"
ARMS = {"sft": "sft (with the refiner)", "none": "no constraint", "kl_in_loss": "static KL"}
PANELS = {
    "val-core/mini_apps/acc/mean@4": ("held-out problems solved (mean and range of 6 runs)", tuple(ARMS)),
    "refiner/improvement_ratio": ("share of responses that a refinement beats", ("sft",)),
}


def main() -> None:
    """Draw an arm's runs, at the steps that all of them have."""
    file = Path(sys.argv[1]) if sys.argv[1:] else RESULTS / "fading.png"
    runs = findings.by_algorithm(metrics.read(RESULTS / "lab_final.csv"))["dapo"]
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS))
    for axis, (metric, (title, arms)) in zip(axes, PANELS.items(), strict=True):
        for arm in arms:
            values: dict[int, list[float]] = defaultdict(list)
            for row in (row for run in runs[arm] for row in run if metric in row):
                values[int(row["step"])].append(row[metric])
            points = {step: found for step, found in sorted(values.items()) if len(found) == len(runs[arm])}
            steps, found = list(points), list(points.values())
            axis.plot(steps, list(map(mean, found)), label=ARMS[arm], linewidth=2 if arm == "sft" else 1.2)
            axis.fill_between(steps, list(map(min, found)), list(map(max, found)), alpha=0.12)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
