"""Run directories as they are read for a report, also of a run that is still going."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from recipe.online_refiner.run_dir import read_rows


@dataclass(slots=True, kw_only=True)
class Run:
    """One run.

    Example: ``Run(path=Path("runs/a"), arm="apps_dapo", metrics=[{"step": 1, "reward/mean": 0.1}], refinements=[])``.
    """

    path: Path
    arm: str
    """Runs with the same ``trainer.experiment_name`` are seeds of one arm."""
    metrics: list[dict[str, Any]]
    refinements: list[dict[str, Any]]
    tokens: list[dict[str, Any]]
    """Accepted pairs with the log-prob of every token."""


def read_run(path: Path) -> Run:
    """Read a run directory.

    Raises:
        ValueError: If it is none, or no step is finished yet.
    """
    if not (path / "config.yaml").is_file():
        raise ValueError(f"{path}: not a run directory (config.yaml is missing)")
    config = OmegaConf.load(path / "config.yaml")
    rows = {
        name: list(read_rows(path / f"{name}.jsonl")) if (path / f"{name}.jsonl").exists() else []
        for name in ("metrics", "refinements", "tokens")
    }
    if not rows["metrics"]:
        raise ValueError(f"{path}: no step is finished yet")
    return Run(path=path, arm=str(config.trainer.experiment_name), **rows)


def by_arm(runs: list[Run]) -> dict[str, list[Run]]:
    """Group runs by arm, in the order given."""
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    return arms


def curve(runs: list[Run], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, mean and standard deviation over the runs (seeds) of an arm, (num steps,) each.

    A step counts as soon as one run has it; a value that is missing or not finite is left out.
    """
    values: dict[int, list[float]] = {}
    for run in runs:
        for row in run.metrics:
            if row.get(metric) is not None:
                values.setdefault(row["step"], []).append(row[metric])
    steps = sorted(values)
    return (
        np.array(steps),
        np.array([np.mean(values[step]) for step in steps]),
        np.array([np.std(values[step]) for step in steps]),
    )
