"""Records of rollouts and their refinements: parts of a step and a writer, on any file system that fsspec knows.

``<path>/000012.w0.jsonl`` has the rollouts of step 12 that writer ``w0`` saw, one JSON object a line. A part is written
in one go, so that object stores can hold it too, and nothing reads it while a run goes on: resuming looks at names.
"""

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

import fsspec

from recipe.online_refiner.rollout import Outcome

SUFFIX = ".jsonl"
UNDONE = "undone"


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


def choose(outcomes: dict[int, Outcome], max_rows: int | None, seed: int) -> list[int]:
    """Return the rows of a step that are recorded: all, or at most so many, accepted refinements first, then others."""
    rows = sorted(outcomes)
    if max_rows is None or max_rows >= len(rows):
        return rows
    random.Random(seed).shuffle(rows)
    rows.sort(key=lambda row: outcomes[row].verdict != "accepted")
    return sorted(rows[:max_rows])
