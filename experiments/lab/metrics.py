"""The metrics of a phase's runs in one small committed file, from which the page is computed."""

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.online_refiner import metric_names

Steps = list[dict[str, float]]  # what each step of a run measured, by the metrics' names, and its number as `step`
SIDE = (  # what is kept beside the held-out share
    metric_names.REWARD,
    "response_length/mean",
    "actor/entropy_loss",
    metric_names.KL_REF,
    metric_names.IMPROVEMENT_RATIO,
    "sandbox/outcome/compile_error",
    metric_names.NUM_ROLLOUTS,
    metric_names.STEP_S,
)


def path_of(protocol: Path, phase: str) -> Path:
    """Return where the metrics of a phase stand: beside its protocol."""
    return protocol.with_name(f"{protocol.stem}_{phase}.csv")


def read(path: Path) -> dict[str, Steps]:
    """Return the runs in a file by their names; none if there is no file."""
    runs: dict[str, Steps] = defaultdict(list)
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                run, _ = row.pop("run"), row.pop("base")
                runs[run].append({name: float(value) for name, value in row.items() if value})
    return dict(runs)


def fingerprint(base: Path) -> str:
    """Return a hash of a folder's weights, which differ between machines even with the same recipe."""
    with (base / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def add(path: Path, run: str, steps: Iterable[Mapping[str, Any]], held_out: Sequence[str], base: str) -> None:
    """Add a run to a file: the step, the held-out metrics and `SIDE`; missing metrics stay empty."""
    names = ["step", *held_out, *SIDE]
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        if is_new:
            table.writerow(["run", "base", *names])
        for step in steps:
            values = (step.get(name) for name in names)
            table.writerow([run, base, *("" if value is None else f"{value:.6g}" for value in values)])
