"""Run directories as they are read for a report, also of a run that is still going."""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from recipe.runs.files import finished_lines, refinement_lines

YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
UNREADABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control characters, what turns the direction of a line, what has no width, and halves of a character."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run.

    Example: ``Run(path=Path("runs/a"), name="a", config={"constraint.eta": 0.001}, metrics=[{"step": 1, ...}])``.
    """

    path: Path
    name: str
    """As the page calls it: its path below the folder that all runs have in common."""
    config: dict[str, Any]
    """Every setting by its dotted key; lists as JSON text."""
    metrics: list[dict[str, Any]]
    """One object a step, at least one."""

    def refinements(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the refine stage, in order; none if the run has none.

        Raises:
            ValueError: If a finished line is no JSON.
        """
        lines = refinement_lines(self.path, self.config.get("records.path"))
        return _rows(f"{self.path}, refinements", lines)


def read_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read run directories, each once however often it is named.

    Returns:
        The runs in the order given, and a line on each folder that has nothing to show.
    """
    runs, problems = [], []
    for path in dict.fromkeys(Path(os.path.abspath(path)) for path in paths):
        try:
            runs.append(read_run(path))
        except ValueError as error:
            problems.append(str(error))
    if len(runs) > 1:
        common = os.path.commonpath([run.path.parent for run in runs])
        for run in runs:
            run.name = printable(os.path.relpath(run.path, common))
    return runs, problems


def read_run(path: Path) -> Run:
    """Read one run directory; its refinements are not read yet.

    Raises:
        ValueError: It is no run directory, no step is finished yet, or its files are damaged.
    """
    if not (path / "config.yaml").is_file():
        raise ValueError(f"{path}: not a run directory (config.yaml is missing)")
    try:
        config = yaml.load((path / "config.yaml").read_bytes(), YAML_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{path / 'config.yaml'}: not YAML ({' '.join(str(error).split())})") from None
    file = path / "metrics.jsonl"
    lines = finished_lines(file) if file.exists() else ()
    metrics = list(_rows(f"{path}, metrics", lines))
    if not metrics:
        raise ValueError(f"{path}: no step is finished yet")
    return Run(path=path, name=printable(path.name), config=dict(_flat(config)), metrics=metrics)


def printable(text: str) -> str:
    """Return text that can be shown: what cannot be seen or is no character becomes its number in brackets.

    Model-written text holds all of them; an escape character becomes ``⟨1B⟩``.
    """
    return UNREADABLE.sub(lambda found: f"⟨{ord(found[0]):02X}⟩", text.replace("\r\n", "\n"))


def finite(value: Any) -> float | None:
    """Return a number; None if it is no number, or infinite."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _rows(where: str, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}, line {number}: not JSON ({error})") from None


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, json.dumps(node) if isinstance(node, list | dict) else node
