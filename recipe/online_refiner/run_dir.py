"""The files of a run directory: everything that a report needs is in it.

``config.yaml`` (resolved), ``metrics.jsonl`` (one object a step), ``tokens.jsonl`` (a few accepted pairs a step, with
the policy's log-prob of every token), ``refinements/`` (an object for every rollout, see ``records.py``) and
``checkpoints/``. What was done after the checkpoint that a run resumes from is kept in ``*.undone.jsonl``.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner.records import Records, to_lines

ONE_FILE = "refinements.jsonl"
"""Where earlier versions kept all refinements."""


class RunDir:
    """Writes and reads a run directory. Lines are whole or absent: each batch of them is one write."""

    def __init__(self, path: str | Path) -> None:
        """Make the directory if it is absent."""
        self.path = Path(path).expanduser().absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics = self.path / "metrics.jsonl"
        self.tokens = self.path / "tokens.jsonl"
        self._last_step, self._last_offset = -1, 0  # of metrics.jsonl

    def write_config(self, config: DictConfig) -> None:
        """Write the config with its interpolations resolved."""
        (self.path / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")

    def write_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Write one step's metrics over what was written of it before; numbers that JSON does not have become null."""
        if step != self._last_step:
            self._last_step = step
            self._last_offset = self.metrics.stat().st_size if self.metrics.exists() else 0
        elif self.metrics.exists():
            os.truncate(self.metrics, self._last_offset)
        numbers = {name: _number(value) for name, value in sorted(metrics.items())}
        _append(self.metrics, [{"step": step, **{name: value for name, value in numbers.items() if value is not ...}}])

    def append_tokens(self, step: int, pairs: list[dict[str, Any]]) -> None:
        """Add accepted pairs: ``key`` as in the refinements; ``response``, ``refined`` as [text, log-prob] lists."""
        _append(self.tokens, [{"step": step, **pair} for pair in pairs])

    def forget_after(self, step: int) -> None:
        """Move the lines of later steps, which a resumed run does again, to ``*.undone.jsonl``."""
        for path in (self.metrics, self.tokens, self.path / ONE_FILE):
            if path.exists():
                _cut_after(path, step)


def refinement_lines(run_dir: Path, records_path: str | None = None) -> Iterator[bytes]:
    """Yield the finished lines on a run's rollouts, in order of steps, whichever version of this package wrote them.

    Args:
        run_dir: A run directory.
        records_path: The run's ``records.path``; of a run that was moved, its own folder counts.
    """
    one_file, parts = run_dir / ONE_FILE, run_dir / "refinements"
    if one_file.exists():
        yield from finished_lines(one_file)
    if parts.exists() or records_path is not None:
        yield from Records(str(parts) if parts.exists() else str(records_path)).lines()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON lines file; an unfinished last line is left out."""
    return map(json.loads, finished_lines(path))


def finished_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as they are; the unfinished last one, maybe cut within a character, is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line


def _cut_after(path: Path, step: int) -> None:
    """Move the lines of later steps, and drop an unfinished one; what stays is not read, however long it is."""
    with path.open("r+b") as file:
        finish = file.seek(0, os.SEEK_END)
        start = finish = _line_start(file, finish)  # behind the last line break
        while start > 0:
            previous = _line_start(file, start - 1)
            file.seek(previous)
            if json.loads(file.readline())["step"] <= step:
                break
            start = previous
        file.truncate(finish)
        if start < finish:
            file.seek(start)
            with path.with_suffix(".undone.jsonl").open("ab") as undone:
                shutil.copyfileobj(file, undone)
            file.truncate(start)


def _line_start(file: Any, end: int, block: int = 1 << 16) -> int:
    """Return where the line begins that has its last byte before ``end``."""
    while end > 0:
        begin = max(0, end - block)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return int(begin + found + 1)
        end = begin
    return 0


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("ab") as file:
        file.write(to_lines(rows))


def _number(value: Any) -> Any:
    """Return a metric as a JSON number; ``...`` for what is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ...
    return number if math.isfinite(number) else None
