"""Reading a run's config and checking it by all rules that need nothing else."""

from omegaconf import DictConfig

from recipe.online_refiner.config.fields import RefinementConfig, read_blocks
from recipe.online_refiner.config.rules import (  # noqa: F401  # for their rules
    checkpoints,
    numbers,
    parts,
    refining,
    sizes,
    trainers,
    verl_keys,
)
from recipe.preflight.rules import PlannedRun, check


def load(config: DictConfig) -> RefinementConfig:
    """Read this extension's blocks of a composed config, and check what the config alone tells.

    Raises:
        ValueError: If a key is wrong, or values do not go together.
    """
    check(PlannedRun(config=config, blocks=None), "paths")  # first: other paths are derived from them
    run = PlannedRun(config=config, blocks=read_blocks(config))
    check(run, "numbers")  # before the other rules, which compute with them
    check(run, "config")
    return run.blocks
