"""Draw the README's picture from committed runs: held-out results of three arms, and how often a refinement is better.

Usage: ``python scripts/lab/picture.py [docs/results/fading.png]``
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import MaxNLocator  # noqa: E402

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ARMS = {"dapo-sft": "with the refiner", "dapo-none": "no constraint", "dapo-kl_in_loss": "static KL"}
HELD_OUT = "val-core/mini_apps/acc/mean@4"
PANELS = {
    HELD_OUT: "held-out problems solved (mean and range of 6 runs)",
    "refiner/improvement_ratio": "share of responses that a refinement beats",
}


def by_step(arm: str, metric: str) -> dict[int, list[float]]:
    """Return the values of an arm's runs by step."""
    values: dict[int, list[float]] = defaultdict(list)
    with (RESULTS / "lab_final.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["run"].startswith(f"{arm}-seed") and row[metric]:
                values[int(row["step"])].append(float(row[metric]))
    most = max(map(len, values.values()))
    return {step: found for step, found in sorted(values.items()) if len(found) == most}


def main() -> None:
    """Draw the outcome of three arms, and what the refiner of the first one does."""
    file = Path(sys.argv[1]) if sys.argv[1:] else RESULTS / "fading.png"
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(9, 2.6), layout="constrained")
    for axis, (metric, title) in zip(axes, PANELS.items(), strict=True):
        for arm, name in ARMS.items():
            if metric == HELD_OUT or arm == "dapo-sft":
                found = by_step(arm, metric)
                steps, values = list(found), list(found.values())
                axis.plot(steps, list(map(mean, values)), label=name, linewidth=2 if arm == "dapo-sft" else 1.2)
                axis.fill_between(steps, list(map(min, values)), list(map(max, values)), alpha=0.12)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step", fontsize=8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].legend(fontsize=8, loc="lower right")
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
