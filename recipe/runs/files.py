"""The files of a run: its directory, and the records of its rollouts.

The directory holds ``config.yaml`` (resolved), ``metrics.jsonl`` (one object a step), ``stage.json`` (what the run does
now), ``refinements/`` and ``checkpoints/``. What was done after the checkpoint that a run resumes from is kept in
``metrics.undone.jsonl`` and ``refinements/undone/``.

``refinements/000012.w0.jsonl`` has the rollouts of step 12 that writer ``w0`` saw, one JSON object a line. A part is
written in one go, so that object stores can hold it too, and nothing reads it while a run goes on: resuming looks at
names.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from omegaconf import DictConfig, OmegaConf

SUFFIX = ".jsonl"
UNDONE = "undone"
TOKENS = "tokens"
"""Folder below the records', of records with the numbers of each token (``verl_glue/rows.py`` ``read_tokens``)."""


class Records:
    """Parts under one folder.

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
        return sorted(paths, key=lambda path: (_step(path), path))

    def lines(self) -> Iterator[bytes]:
        """Yield the finished lines of all parts; of a part that is being written, what there is of it."""
        for path in self.parts():
            yield from self.lines_of(path)

    def lines_of(self, path: str) -> Iterator[bytes]:
        """Yield the finished lines of a part."""
        with self._system.open(path, "rb") as part:
            yield from (line for line in part if line.endswith(b"\n"))

    def forget_after(self, step: int) -> None:
        """Move the parts of later steps, which a resumed run does again, to ``undone/<number>/``."""
        later = [path for path in self.parts() if _step(path) > step]
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


def _step(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


class RunDir:
    """Writes and reads a run directory. Lines are whole or absent: each batch of them is one write."""

    def __init__(self, path: str | Path) -> None:
        """Make the directory if it is absent."""
        self.path = Path(path).expanduser().absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics, self.stage = self.path / "metrics.jsonl", self.path / "stage.json"
        self._last_step, self._last_offset = -1, 0  # of metrics.jsonl

    def write_config(self, config: DictConfig) -> None:
        """Write the config with its interpolations resolved."""
        (self.path / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")

    def write_stage(self, name: str, step: int = 0, num_steps: int | None = None) -> None:
        """Write what the run does from now on; step 0: it starts."""
        stage = {"stage": name, "step": step, "num_steps": num_steps, "since": time.time()}
        _replace(self.stage, to_lines([stage]))

    def read_stage(self) -> dict[str, Any] | None:
        """Return what the run does; None if it has not said it yet."""
        return _object(self.stage.read_bytes()) if self.stage.exists() else None

    def write_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one step's metrics over what was written of it before; numbers that JSON does not have become null."""
        if step != self._last_step:
            self._last_step = step
            self._last_offset = self.metrics.stat().st_size if self.metrics.exists() else 0
            before = None
        else:
            before = self.metrics.read_bytes()[: self._last_offset]
        numbers = {name: _number(value) for name, value in sorted(metrics.items()) if name != "step"}
        line = to_lines([{"step": step, **{name: one for name, one in numbers.items() if one is not ...}}])
        if before is None:
            with self.metrics.open("ab") as file:
                file.write(line)
        else:  # what is there stays until the new one is whole
            _replace(self.metrics, before + line)

    def forget_after(self, step: int) -> dict[str, Any]:
        """Move the metrics of later steps, which a resumed run does again, to ``metrics.undone.jsonl``.

        So it does with lines that are none: a machine that went down may leave NUL bytes.

        Returns:
            The metrics of ``step`` itself, which may be written once more; empty if there are none.
        """
        if not self.metrics.exists():
            return {}
        lines = [((_object(line) or {}).get("step", math.inf) <= step, line) for line in finished_lines(self.metrics)]
        if not all(is_kept for is_kept, _ in lines):
            with self.metrics.with_suffix(".undone.jsonl").open("ab") as undone:
                undone.writelines(line for is_kept, line in lines if not is_kept)
        kept = [line for is_kept, line in lines if is_kept]
        _replace(self.metrics, b"".join(kept))
        if not kept or (last := json.loads(kept[-1]))["step"] != step:
            return {}
        self._last_step, self._last_offset = step, sum(map(len, kept[:-1]))
        return last


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def refinement_lines(run_dir: Path, records_path: str | None = None) -> Iterator[bytes]:
    """Yield the finished lines on a run's rollouts, in order of steps.

    Args:
        run_dir: A run directory.
        records_path: The run's ``records.path``; of a run that was moved, its own folder counts.
    """
    own = run_dir / "refinements"
    if own.exists() or records_path is not None:
        yield from Records(str(own) if own.exists() else str(records_path)).lines()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON lines file; an unfinished last line is left out, and so are lines that are none."""
    return objects_of(finished_lines(path))


def objects_of(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines; what is none is left out."""
    return (row for row in map(_object, lines) if row is not None)


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object of a JSON line; None if it is none."""
    try:
        row = json.loads(line)
    except ValueError:  # also what is no UTF-8
        return None
    return row if isinstance(row, dict) else None


def finished_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as they are; the unfinished last one, maybe cut within a character, is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line


def _number(value: Any) -> Any:
    """Return a metric as a JSON number; ``...`` for what is none."""
    try:
        number = float(value)
    except OverflowError:  # an integer
        return None
    except (TypeError, ValueError):
        return ...
    return number if math.isfinite(number) else None
