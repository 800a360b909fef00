"""A run's config checked with its files, as the main command does before it lets verl check its own."""

import pytest
from omegaconf import DictConfig

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.verl_glue.model_configs import plan_run
from recipe.online_refiner.verl_glue.preflight import (  # noqa: F401  # their rules
    checkpoints,
    images,
    inputs,
    models,
    names,
    trials,
)
from recipe.online_refiner.verl_glue.preflight.files import Files
from recipe.preflight import machine, needed  # noqa: F401  # their rules
from recipe.preflight.rules import PlannedRun, check


def checked(config: DictConfig) -> PlannedRun:
    """Check a run by all rules."""
    run = PlannedRun(config=config, blocks=load(config))
    check(run, "start")
    run.files = Files(config)
    check(run, "machine")
    check(run, "files")
    run.plan = plan_run(config, run.blocks, tokenizer=run.files.tokenizer)
    check(run, "sizes")
    return run


def error_of(config: DictConfig) -> str:
    """Return the line that says what is wrong."""
    with pytest.raises(ValueError) as error:
        checked(config)
    assert "\n" not in str(error.value)
    return str(error.value)
