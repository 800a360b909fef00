"""The commands that pyproject.toml names; each says in one line what to install where a package is missing."""

import importlib
import sys

FOREIGN = {"datasets", "fsspec", "hydra", "jinja2", "math_verify", "numpy", "omegaconf", "pandas", "psutil", "pydantic"}
FOREIGN |= {"rapidfuzz", "ray", "rich", "setproctitle", "tensordict", "torch", "transfer_queue", "transformers", "verl"}
FOREIGN |= {"vllm", "yaml"}
"""Packages that come with verl, vLLM or this package. A module that a user names may be missing for other reasons."""


def train() -> None:
    """Train: ``recipe.online_refiner.main``."""
    _run("recipe.online_refiner.main", "command")


def prepare_data() -> None:
    """Write data in verl's schema: ``recipe.data_preparation``."""
    _run("recipe.data_preparation.__main__")


def score() -> None:
    """Score answers: ``reward.score``."""
    _run("reward.score")


def evaluate() -> None:
    """Evaluate a model: ``recipe.evaluation``."""
    _run("recipe.evaluation.__main__")


def smoke() -> None:
    """Run the smoke test: ``recipe.smoke``."""
    _run("recipe.smoke.__main__")


def _run(module: str, function: str = "main") -> None:
    try:
        sys.exit(getattr(importlib.import_module(module), function)())
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name not in FOREIGN:
            raise
        print(
            f"error: {sys.executable} has no package {name}: install this package into verl's environment, or without "
            'pip\'s --no-deps after pip install "verl[fsdp,vllm]==0.9.1"',
            file=sys.stderr,
        )
        raise SystemExit(2) from None
