"""The files of a run directory: everything that a report needs is in it.

``config.yaml`` (resolved), ``metrics.jsonl`` (one object a step), ``refinements.jsonl`` (one object a rollout),
``tokens.jsonl`` (a few accepted pairs a step, with the policy's log-prob of every token) and ``checkpoints/``. What was
done after the checkpoint that a run resumes from is kept in ``*.undone.jsonl``.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:  # it brings torch and Ray, and who only reads a run directory needs neither
    from recipe.online_refiner.refine_stage import StageResult


class RunDir:
    """Writes and reads a run directory. Lines are whole or absent: each batch of them is one write.

    Args:
        path: The directory; made if absent.
    """

    def __init__(self, path: str | Path) -> None:
        """Make the directory."""
        self.path = Path(path).expanduser().absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics = self.path / "metrics.jsonl"
        self.refinements = self.path / "refinements.jsonl"
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

    def append_refinements(self, step: int, result: "StageResult") -> None:
        """Add one step's rollouts with what became of their refinement."""
        rows = [
            {
                "step": step,
                "key": rollout.key,
                "prompt": rollout.messages,
                "response": response,
                "refined": refinement.text if refinement.is_scored else None,
                "reward": rollout.reward,
                "refined_reward": refinement.reward,
                "verdict": refinement.verdict,
                "detail": "" if refinement.is_scored else refinement.text,
            }
            for rollout, refinement, response in zip(result.rollouts, result.refinements, result.responses, strict=True)
        ]
        _append(self.refinements, rows)

    def append_tokens(self, step: int, pairs: list[dict[str, Any]]) -> None:
        """Add accepted pairs: ``key`` as in refinements.jsonl; ``response``, ``refined`` as [text, log-prob] lists."""
        _append(self.tokens, [{"step": step, **pair} for pair in pairs])

    def forget_after(self, step: int) -> None:
        """Move the lines of later steps, which a resumed run does again, to ``*.undone.jsonl``."""
        for path in (self.metrics, self.refinements, self.tokens):
            if path.exists():
                rows = list(read_rows(path))
                undone = [row for row in rows if row["step"] > step]
                if undone:
                    _append(path.with_suffix(".undone.jsonl"), undone)
                scratch = path.with_suffix(".part")
                scratch.unlink(missing_ok=True)
                _append(scratch, [row for row in rows if row["step"] <= step])
                os.replace(scratch, path)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON lines file; an unfinished last line is left out."""
    return map(json.loads, finished_lines(path))


def finished_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file as they are; the unfinished last one, maybe cut within a character, is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line


def _append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def _number(value: Any) -> Any:
    """Return a metric as a JSON number; ``...`` for what is none."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return ...
    return number if math.isfinite(number) else None
