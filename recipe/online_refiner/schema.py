"""Reads the blocks of this extension and checks them. Needs neither torch nor verl."""

from dataclasses import fields
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from recipe.online_refiner.blocks import ConstraintConfig, MeasureConfig, RecordsConfig, RefinementConfig, SizingConfig
from recipe.online_refiner.rules import check
from recipe.online_refiner.rules.run import Run
from refiner_worker.config import RefinerConfig

RENAMED = {
    "refiner.max_new_tokens": "refiner.response_length",
    "refiner.num_candidates": "refiner.n",
    "refiner.num_kl_rollouts": "measure.num_kl_rollouts",
    "constraint.filter": "constraint.reward_gate",
    "constraint.cross_entropy_all_every": "measure.cross_entropy_all_every",
}
"""Names of earlier releases."""

Block = TypeVar("Block")


def load(config: DictConfig) -> RefinementConfig:
    """Read and check this extension's blocks of a composed config.

    Args:
        config: The whole config of a run, interpolations not yet resolved.

    Raises:
        ValueError: If a key is unknown, missing or of a wrong type, or values do not go together.
    """
    blocks = RefinementConfig(
        refiner=_read(config, "refiner", RefinerConfig),
        constraint=_read(config, "constraint", ConstraintConfig),
        measure=_read(config, "measure", MeasureConfig),
        records=_read(config, "records", RecordsConfig),
        sizing=_read(config, "sizing", SizingConfig),
        has_reference_worker=bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss),
    )
    check(Run(config=config, blocks=blocks), "config")
    return blocks


def _read(config: DictConfig, name: str, block_type: type[Block]) -> Block:
    if name not in config:
        raise ValueError(f"the config has no block `{name}`; add `refinement: online` to its defaults list")
    block = config[name]
    known = {field.name for field in fields(block_type)}  # type: ignore[arg-type]
    unknown, missing = sorted(set(block) - known), sorted(known - set(block))
    if unknown and (new := RENAMED.get(f"{name}.{unknown[0]}")):
        raise ValueError(f"{name}.{unknown[0]} is called {new} now")
    if unknown or missing:
        what = f"unknown key {name}.{unknown[0]}" if unknown else f"missing key {name}.{missing[0]}"
        raise ValueError(f"{what}; the keys of this block are: {', '.join(sorted(known))}")
    try:
        values: Any = OmegaConf.to_container(block, resolve=True)
        return block_type(**values)
    except OmegaConfBaseException as error:
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        key, of = ".".join(map(str, first["loc"])), block_type.__annotations__[str(first["loc"][0])]
        or_null = ", or null" if type(None) in getattr(of, "__args__", ()) else ""
        raise ValueError(f"{name}.{key}={first['input']}: {first['msg']}{or_null}") from error
