"""Run directories written by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Rows = list[dict[str, Any]]


@pytest.fixture
def refinement() -> Callable[..., dict[str, Any]]:
    """Return a function that makes a record: "x - y", -0.3, was refined to "x + y", 1.0."""

    def make(step: int, verdict: str, **changes: Any) -> dict[str, Any]:
        scored = verdict in ("accepted", "not_better")
        return {
            **{"step": step, "key": f"u_{step}", "verdict": verdict, "response": "x - y", "reward": -0.3},
            **{"refined": "x + y" if scored else None, "refined_reward": 1.0 if scored else None},
            **{"detail": "" if scored else "x +", "prompt": [{"role": "user", "content": "Add them."}]},
            **changes,
        }

    return make


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run directory: its rewards, more metrics of every step, settings, and files."""

    def write(
        name: str,
        rewards: list[float | None],
        *,
        metrics: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        refinements: Rows | None = None,
    ) -> Path:
        path = tmp_path / name
        path.mkdir(parents=True)
        settings = {"trainer": {"experiment_name": "x"}, "run_dir": str(path), **(config or {})}
        (path / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML as well
        steps = [{"step": step, "reward/mean": reward, **(metrics or {})} for step, reward in enumerate(rewards, 1)]
        (path / "refinements").mkdir()
        for file, rows in (("metrics", steps), ("refinements/000001.w0", refinements or [])):
            (path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
