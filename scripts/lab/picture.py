"""Draw the README's picture from committed runs: the policy's reward rises, and fewer refinements are accepted.

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

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
ARM = "dapo-sft-seed"
PANELS = {"reward/mean": "reward of the policy", "refiner/improvement_ratio": "share of accepted refinements"}


def main() -> None:
    """Draw each run of the arm thin, and their mean."""
    file = Path(sys.argv[1]) if sys.argv[1:] else RESULTS / "fading.png"
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(9, 2.4), layout="constrained")
    for axis, (name, title) in zip(axes, PANELS.items(), strict=True):
        runs: dict[str, dict[int, float]] = defaultdict(dict)
        with (RESULTS / "lab_final.csv").open() as stream:
            for row in csv.DictReader(stream):
                if row["run"].startswith(ARM) and row[name]:
                    runs[row["run"]][int(row["step"])] = float(row[name])
        for run in runs.values():
            axis.plot(list(run), list(run.values()), color="tab:blue", alpha=0.25, linewidth=0.8)
        steps = sorted(set.intersection(*(set(run) for run in runs.values())))
        axis.plot(steps, [mean(run[step] for run in runs.values()) for step in steps], color="tab:blue", linewidth=2)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(f"step ({len(runs)} runs, and their mean)", fontsize=8)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
