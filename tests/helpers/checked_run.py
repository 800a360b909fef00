"""A run's config checked with its files, as the main command does before it lets verl check its own."""

import pytest
from omegaconf import DictConfig

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.plan import make_plan
from recipe.preflight import checkpoints, inputs, machine, models, names, trials  # noqa: F401  # their rules
from recipe.preflight.files import Files
from recipe.preflight.rules import Run, check


def checked(config: DictConfig) -> Run:
    """Check a run by all rules."""
    run = Run(config=config, blocks=load(config))
    run.files = Files(config)
    check(run, "machine")
    check(run, "files")
    run.plan = make_plan(config, run.blocks, tokenizer=run.files.tokenizer)
    check(run, "sizes")
    return run


def error_of(config: DictConfig) -> str:
    """Return the line that says what is wrong."""
    with pytest.raises(ValueError) as error:
        checked(config)
    assert "\n" not in str(error.value)
    return str(error.value)
