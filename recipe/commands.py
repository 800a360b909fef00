"""The command line ``online-refiner COMMAND``, which imports only the module of the command that is asked for."""

import difflib
import importlib
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import refiner_worker  # noqa: F401
import reward  # noqa: F401

COMMANDS = {
    "train": ("recipe.online_refiner.main", "command", "train with a refiner; keys of the config follow"),
    "check": ("recipe.offline.command", "check", "before a run: does refining an answer beat answering again?"),
    "refine": ("recipe.offline.command", "refine", "refine answers into files for SFT and preference training"),
    "prepare": ("recipe.data_preparation.command", "main", "write data for training, from your table or public ones"),
    "score": ("reward.score", "main", "score answers by the reward of training"),
    "report": ("recipe.report.command", "main", "one page on a run or several: curves, refinements, advice"),
    "evaluate": ("recipe.evaluation.command", "main", "HumanEval, HumanEval+, MBPP and MBPP+ of a model"),
    "smoke": ("recipe.smoke.command", "main", "has this machine all that a run needs? Trains a tiny model"),
}
"""The commands, each with its module, its function, and a line for --help."""
USAGE = """usage: online-refiner COMMAND [ARGUMENT...]

RL fine-tuning with an online refiner, as a verl extension.

{commands}

online-refiner COMMAND --help has the options of a command and an example.
online-refiner --version has the versions of this package and of verl."""

REQUIRED = {"datasets", "fsspec", "hydra", "jinja2", "math_verify", "omegaconf", "plotly", "psutil", "pydantic"}
REQUIRED |= {"pylatexenc", "rapidfuzz", "rich", "tensordict", "tqdm", "transfer_queue", "yaml"}
"""Modules of this package's requirements."""
OF_VERL = {"numpy", "packaging", "pandas", "pyarrow", "ray", "setproctitle", "torch", "transformers", "verl", "vllm"}
"""Modules that come with verl and vLLM, whose versions verl chooses."""
INSTALL_VERL = 'pip install "verl[fsdp,vllm]==0.9.1"'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user ends it with one line and exit status 2.

    Args:
        arguments: Without them the command is this process's own (``sys.argv``). A program, such as a notebook, gives
            them, and the command runs in a process of its own: ``main(["report", "runs/online_refiner/quickstart"])``.

    Returns:
        The command's exit status.
    """
    if arguments is not None:
        return subprocess.run([sys.executable, "-m", __name__, *arguments]).returncode
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        lines = (f"  {name:9} {line}" for name, (_, _, line) in COMMANDS.items())
        print(USAGE.format(commands="\n".join(lines)))
        return 0
    if name == "--version":
        print(_versions())
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        also = f"; did you mean {near[0]}?" if near else ""
        _refuse(f"{name} is not known; give one of: {', '.join(COMMANDS)}{also}")
    del sys.argv[1]
    # Reward functions and data classes of the user's lie in the current folder. No name there hides one of ours: those
    # of an editable install are looked for after the whole path.
    sys.path.append(os.getcwd())
    module, function, _ = COMMANDS[name]
    try:
        sys.exit(getattr(importlib.import_module(module), function)())
    except ImportError as error:
        if (line := _install(error)) is None:
            raise
        _refuse(line)


def _install(error: ImportError) -> str | None:
    """Return what to install, or None if another program's import failed."""
    package = str(error.name).partition(".")[0]
    is_missing = isinstance(error, ModuleNotFoundError) and error.name == package
    if package in REQUIRED and is_missing:
        return f"{sys.executable} has no package {package}: install this package again, without pip's --no-deps"
    if package in OF_VERL and is_missing:
        return (
            f"{sys.executable} has no package {package}: install this package into verl's environment, or run "
            f"{INSTALL_VERL}"
        )
    if package in OF_VERL:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{place.filename}:{place.lineno}: {error}; another version of {package} is needed: {INSTALL_VERL}"
    return None


def _versions() -> str:
    """Return the versions that a report of a fault needs, in one line."""
    from recipe.online_refiner import __version__
    from recipe.runs.starts import versions

    found = {"online-refiner": __version__, "Python": sys.version.split()[0], **versions()}
    return ", ".join(f"{name} {number}" for name, number in found.items())


def _refuse(line: str) -> NoReturn:
    print("error:", line, file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
