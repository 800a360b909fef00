"""The files of a run: its directory, and the records of its rollouts.

The directory holds ``config.yaml`` (resolved), ``starts.jsonl`` (one object a start: date, command, versions),
``metrics.jsonl`` (one object a step), ``meanings.json`` (the metrics that only the run's constraint has),
``stage.json`` (what the run does now), ``refinements/`` and ``checkpoints/``.
What was done after the checkpoint that a run resumes from is kept in ``metrics.undone.jsonl`` and
``refinements/undone/``.

``refinements/000012.w0.jsonl`` has the rollouts of step 12 that writer ``w0`` saw, one JSON object a line. A part is
written in one go, so that object stores can hold it too. While a run goes on, only the view on a terminal reads one:
resuming looks at names.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from omegaconf import DictConfig, OmegaConf

ETA_FILE = "constraint.json"
"""The file in a checkpoint that holds the state of an adaptive eta."""
BUDGET_FILE = "refiner_budget.json"
"""The file in a checkpoint that holds the estimates of ``refiner.budget``."""
SUFFIX = ".jsonl"
UNDONE = "undone"
TOKENS = "tokens"
"""The folder, below the records' folder, with the numbers of each token (``verl_glue/rows.py`` ``read_tokens``)."""


class Records:
    """Records of rollouts, in parts under one folder.

    Args:
        path: A folder, or the URL of one (``s3://bucket/run/refinements``); made with the first part.
    """

    def __init__(self, path: str) -> None:
        """Open nothing yet."""
        self._system, self.path = fsspec.core.url_to_fs(path)

    def write(self, step: int, writer: str, rows: Iterable[dict[str, Any]]) -> None:
        """Write a part, over one of the same name; lone surrogates, which models write, are escaped."""
        text = to_lines({"step": step, **row} for row in rows)
        if text:
            self._system.makedirs(self.path, exist_ok=True)
            self._system.pipe_file(f"{self.path}/{step:06d}.{writer}{SUFFIX}", text)

    def parts(self) -> list[str]:
        """Return the paths of all parts, in order of their steps."""
        if not self._system.isdir(self.path):
            return []
        paths = [path for path in self._system.ls(self.path, detail=False) if path.endswith(SUFFIX)]
        return sorted(paths, key=lambda path: (_step_of_part(path), path))

    def lines(self, step: int | None = None) -> Iterator[bytes]:
        """Yield the finished lines of all parts, or of a step's. A part may still be growing."""
        for path in self.parts():
            if step in (None, _step_of_part(path)):
                yield from self.lines_of(path)

    def lines_of(self, path: str) -> Iterator[bytes]:
        """Yield the finished lines of a part."""
        with self._system.open(path, "rb") as part:
            yield from (line for line in part if line.endswith(b"\n"))

    def forget_after(self, step: int) -> None:
        """Move the parts of later steps, which a resumed run does again, to ``undone/<number>/``."""
        later = [path for path in self.parts() if _step_of_part(path) > step]
        if later:
            undone = f"{self.path}/{UNDONE}"
            number = len(self._system.ls(undone)) if self._system.isdir(undone) else 0
            folder = f"{undone}/{number + 1}"
            self._system.makedirs(folder, exist_ok=True)
            for path in later:
                self._system.mv(path, f"{folder}/{path.rpartition('/')[2]}")


def to_lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """Return objects as JSON lines."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", errors="backslashreplace")


def _step_of_part(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


class RunDir:
    """Writes and reads a run directory. Lines are whole or absent: each batch of them is one write."""

    def __init__(self, path: str | Path) -> None:
        """Make the directory if it is absent."""
        self.path = Path(path).expanduser().absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics, self.stage = self.path / "metrics.jsonl", self.path / "stage.json"

    def write_config(self, config: DictConfig) -> None:
        """Write the config with its interpolations resolved; the file is replaced as a whole."""
        _replace(self.path / "config.yaml", OmegaConf.to_yaml(config, resolve=True).encode())

    def write_meanings(self, meanings: dict[str, str]) -> None:
        """Write the meaning of each metric that only the run's constraint has, by name."""
        _replace(self.path / "meanings.json", to_lines([meanings]))

    def write_start(self, start: dict[str, Any]) -> None:
        """Append a start of the run: when it was, by which command, and with which versions."""
        with (self.path / "starts.jsonl").open("ab") as file:
            file.write(to_lines([start]))

    def write_stage(self, name: str, step: int = 0, num_steps: int | None = None) -> None:
        """Write the stage that the run enters now; step 0: the run starts."""
        stage = {"stage": name, "step": step, "num_steps": num_steps, "since": time.time()}
        _replace(self.stage, to_lines([stage]))

    def read_stage(self) -> dict[str, Any] | None:
        """Return the stage of the run; None if the run has not written one yet."""
        return _object(self.stage.read_bytes()) if self.stage.exists() else None

    def read_steps(self) -> list[dict[str, Any]]:
        """Return the metrics of all steps written so far."""
        return list(read_rows(self.metrics)) if self.metrics.exists() else []

    def write_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one step's metrics, in place of earlier ones of the step; a value that is not finite becomes null."""
        numbers = {name: _number(value) for name, value in sorted(metrics.items()) if name != "step"}
        line = to_lines([{"step": step, **numbers}])
        lines = list(finished_lines(self.metrics)) if self.metrics.exists() else []
        if lines and _step_of(lines[-1]) == step:
            _replace(self.metrics, b"".join([*lines[:-1], line]))  # what is there stays until the new one is whole
        else:
            with self.metrics.open("ab") as file:
                file.write(line)

    def forget_after(self, step: int) -> dict[str, Any]:
        """Move the metrics of later steps, which a resumed run does again, to ``metrics.undone.jsonl``.

        Lines that hold no metrics are moved too: a machine that went down may leave NUL bytes.

        Returns:
            The metrics of ``step`` itself, which may be written once more; empty if there are none.
        """
        if not self.metrics.exists():
            return {}
        kept: list[bytes] = []
        undone: list[bytes] = []
        for line in finished_lines(self.metrics):
            (kept if _step_of(line) <= step else undone).append(line)
        if undone:
            with self.metrics.with_suffix(".undone.jsonl").open("ab") as file:
                file.writelines(undone)
        _replace(self.metrics, b"".join(kept))
        last = json.loads(kept[-1]) if kept else {}
        return last if last.get("step") == step else {}


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON lines file, without an unfinished last line and lines that hold no object."""
    return objects_of(finished_lines(path))


def objects_of(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines; lines that hold no object are left out."""
    return (row for row in map(_object, lines) if row is not None)


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object of a JSON line; None if the line holds none."""
    try:
        row = json.loads(line, parse_constant=lambda name: None)  # NaN, as the reward of a function that is wrong
    except ValueError:  # also what is no UTF-8
        return None
    return row if isinstance(row, dict) else None


def _step_of(line: bytes) -> float:
    """Return the step of a line of metrics; infinity if the line holds no metrics."""
    return (_object(line) or {}).get("step", math.inf)


def finished_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as they are; the unfinished last one, maybe cut within a character, is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # the last one of an integer
        return None
    return number if math.isfinite(number) else None
