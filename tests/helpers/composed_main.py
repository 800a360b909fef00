"""The main config with overrides, without composing it again for each test (a second)."""

import functools
import pickle
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner import config

CONFIG = Path(str(config.__file__)).parent


@functools.cache
def base(engine: str | None = None) -> DictConfig:
    """Compose it, for an engine."""
    with initialize_config_dir(str(CONFIG), version_base=None):
        overrides = ["actor_rollout_ref.model.path=model", *([f"model_engine={engine}"] if engine else [])]
        return compose("online_refiner", overrides=overrides)


@functools.cache
def _pickled() -> bytes:
    return pickle.dumps(base())


def composed(*overrides: str) -> DictConfig:
    """Return it with overrides as Hydra would set them."""
    config: DictConfig = pickle.loads(_pickled())  # a sixth of the time of a deep copy
    OmegaConf.set_struct(config, False)
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if override.startswith("~"):
            block, _, name = key.rpartition(".")
            del OmegaConf.select(config, block)[name]
        else:
            OmegaConf.update(config, key, yaml.safe_load(value))
    return config
