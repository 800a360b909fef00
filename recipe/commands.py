"""``online-refiner COMMAND``: the first word says what to do. Nothing but that command's module is imported."""

import difflib
import importlib
import os
import sys

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
"""Module, function, and a line for --help."""
USAGE = """usage: online-refiner COMMAND [ARGUMENT...]

RL fine-tuning with an online refiner, as a verl extension.

{commands}

online-refiner COMMAND --help says more."""

FOREIGN = {"datasets", "fsspec", "hydra", "jinja2", "math_verify", "numpy", "omegaconf", "pandas", "plotly", "psutil"}
FOREIGN |= {"packaging", "pydantic", "pylatexenc", "rapidfuzz", "ray", "rich", "setproctitle", "tensordict", "torch"}
FOREIGN |= {"tqdm", "transfer_queue", "transformers", "verl", "vllm", "yaml"}
"""Packages that come with verl, vLLM or this package. A module that a user names may be missing for other reasons."""


def main() -> None:
    """Run the command that the first argument names; a mistake is one line, and exit status 2."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        lines = (f"  {name:9} {line}" for name, (_, _, line) in COMMANDS.items())
        print(USAGE.format(commands="\n".join(lines)))
        return
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
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in FOREIGN:
            raise
        _refuse(
            f"{sys.executable} has no package {package}: install this package into verl's environment, or without "
            'pip\'s --no-deps after pip install "verl[fsdp,vllm]==0.9.1"'
        )


def _refuse(line: str) -> None:
    print("error:", line, file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
