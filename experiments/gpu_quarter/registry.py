"""The registry of jobs, and the place where one runs."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.gpu_quarter.runner import Job

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place where a job runs: its output folder, on a GPU or in a rehearsal."""

    output: Path
    is_rehearsal: bool

    @property
    def platform(self) -> str:
        """The main job's key ``platform``."""
        return "cpu" if self.is_rehearsal else "gpu"

    def folder(self, name: str) -> Path:
        """Return the folder of a job's output, which is made if it is absent."""
        path = self.output / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def fresh(self, name: str) -> Path:
        """Return an empty folder for a run; the output of an earlier call is removed."""
        shutil.rmtree(self.output / name / "run", ignore_errors=True)
        return self.folder(name) / "run"

    def choose(self, gpu: Any, rehearsal: Any) -> Any:
        """Return the value for a GPU, or in a rehearsal the other one."""
        return rehearsal if self.is_rehearsal else gpu

    def smollm2(self) -> str:
        """Return the folder of SmolLM2-135M-Instruct."""
        answer = subprocess.run(
            [sys.executable, "scripts/get_smollm2.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
        return answer.stdout.strip()


Act = Callable[[Place], Figures]
JOBS: dict[str, tuple[Job, Act]] = {}
"""The jobs by name; ``jobs.py`` ``ORDER`` has their order."""
BAD: dict[str, tuple[Job, Act]] = {}
"""Jobs of a rehearsal that hang, die or do not end in time."""


def job(
    name: str, shows: str, *, seconds: float, group: dict[str, tuple[Job, Act]] = JOBS, **settings: Any
) -> Callable[[Act], Act]:
    """Return a decorator that adds a function to the jobs; ``seconds`` is its estimated time on an H200."""
    settings.setdefault("limit_s", 2 * seconds + 60)

    def add(act: Act) -> Act:
        group[name] = (Job(name=name, shows=shows, expects_s=seconds, **settings), act)
        return act

    return add
