"""Runs of the main job and of stock verl, and their measurements."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.collapse import design
from experiments.gpu_quarter.runner import kill
from experiments.lab.protocol import HELD_OUT
from recipe.online_refiner import metric_names
from recipe.runs.files import read_rows

POLL_S = 0.2
RUN_MARK = "GPU_QUARTER_RUN"
Steps = list[dict[str, Any]]
GRADIENT = "actor/grad_norm"
KEPT = (GRADIENT, metric_names.REWARD, HELD_OUT, design.HELD_OUT)
"""The metrics that are kept even if they are 0."""
PART = re.compile(r"^ *(\d+):(\d\d)  (.+)$", re.MULTILINE)
"""A line of ``console=progress``: a part of the start, with minutes and seconds since the command."""
ENGINE = re.compile(r"\[\w+\.py:\d+\] (?!It )(.*\b(?:took|takes|finished in) [\d.]+ .*)")
"""A line of vLLM's log about the seconds of its start; lines about its sleep begin with "It"."""
OWN = ("platform=", "run_dir=", "refiner.", "constraint.", "measure.")
"""Keys that stock verl does not have."""


def ours(run_dir: Path, overrides: Sequence[str]) -> list[str]:
    """Return the command of a run of ours."""
    return [sys.executable, "-m", "recipe.online_refiner.main", *overrides, f"run_dir={run_dir}"]


def train(
    command: Sequence[str],
    metrics: Path,
    environment: Mapping[str, str] | None = None,
    until: Callable[[int], bool] = lambda num_steps: False,
) -> tuple[int | None, dict[str, Any]]:
    """Run a command that trains, to its end or until it has done some steps.

    Args:
        command: What to run; its output is this process's.
        metrics: The file to which it adds a line a step.
        environment: Variables beside this process's.
        until: Whether to end it by SIGKILL after so many steps.

    Returns:
        Its exit code, None if it was ended; seconds from its start to its end, to each step's line, and the steps.
    """
    began, seen, mark = time.monotonic(), list[float](), uuid.uuid4().hex
    job = subprocess.Popen(command, env={**os.environ, **(environment or {}), RUN_MARK: mark})
    while job.poll() is None:
        time.sleep(POLL_S)
        lines = metrics.read_text().count("\n") if metrics.exists() else 0
        seen += [time.monotonic() - began] * (lines - len(seen))
        if until(lines):
            break
    code = job.poll()
    if code is None:
        kill(mark, RUN_MARK)
        job.wait()
    steps = steps_of(metrics)
    found = {"wall_s": time.monotonic() - began, "step_at_s": seen, "steps": steps}
    print(f"exit code {code} after {found['wall_s']:.0f} s and {len(steps)} steps", flush=True)
    return code, rounded(found)


def start_of(log: str) -> dict[str, Any]:
    """Return what the log of a run says of its start.

    Args:
        log: The output of the run. Its parts are there with ``console=progress``, its engines with ``console=log``.

    Returns:
        ``began_at_s``: by part the seconds from the command to its begin; ``engines``: vLLM's own lines.
    """
    began = {name: 60 * int(minutes) + int(seconds) for minutes, seconds, name in PART.findall(log)}
    return {"began_at_s": began, "engines": ENGINE.findall(log)}


def steps_of(metrics: Path) -> Steps:
    """Return each step's metrics, in our format or verl's, without metrics that are 0 and not in ``KEPT``."""
    rows = list(read_rows(metrics)) if metrics.exists() else []
    flat = [{"step": row["step"], **row["data"]} if "data" in row else row for row in rows]
    return [{name: value for name, value in row.items() if value or name in KEPT} for row in flat]


def rounded(value: Any) -> Any:
    """Return a value with its numbers rounded to five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def step_faults(code: int | None, found: Mapping[str, Any], numbers: Sequence[int]) -> list[str]:
    """Return what is wrong with a run that should have done these steps."""
    faults = [] if code == 0 else [f"exit code {code}"]
    done = [step["step"] for step in found["steps"]]
    if done != list(numbers):
        faults.append(f"its steps are {done}, not {list(numbers)}")
    faults += [f"no finite gradient in step {one['step']}" for one in found["steps"] if one.get(GRADIENT) is None]
    return faults


def largest_difference(steps: Steps, others: Steps, names: Sequence[str]) -> dict[str, float]:
    """Return by metric the largest difference between two runs, relative to the other's largest number."""
    largest = {}
    for name in names:
        pairs = [(one.get(name, 0.0), other.get(name, 0.0)) for one, other in zip(steps, others, strict=True)]
        scale = max((abs(other) for _, other in pairs), default=0.0) or 1.0
        largest[name] = max((abs(one - other) for one, other in pairs), default=0.0) / scale
    return largest


def figures_of(file: Path) -> dict[str, Any]:
    """Return the figures of a job that has been run."""
    found: dict[str, Any] = json.loads(file.read_text())["figures"]
    return found
