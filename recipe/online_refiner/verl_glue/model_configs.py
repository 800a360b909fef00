"""Configs of a run's models, read as verl's servers and workers read them, and the plan that is made of them."""

from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.workers.config import HFModelConfig
from verl.workers.rollout.utils import get_max_position_embeddings

from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.config.replicas import MODEL_SHAPE_KEYS, model_config
from recipe.online_refiner.plan import CRITIC_KEY, MODEL_KEY, Plan, make_plan
from recipe.preflight.rules import has_critic
from refiner_worker.config import RefinerConfig

UNREADABLE = (OSError, ValueError, AssertionError, AttributeError)
"""Errors that verl raises for a model's config that it cannot read or change."""


def plan_run(config: DictConfig, blocks: RefinementConfig, *, tokenizer: Any) -> Plan:
    """Read the models' configs and return the run's plan; ``tokenizer`` is the policy's.

    Raises:
        ValueError: If a model's config cannot be read.
    """
    configs = read_model_configs(config, blocks.refiner)
    return make_plan(config, blocks, tokenizer=tokenizer, model_configs=configs)


def read_model_configs(config: DictConfig, refiner: RefinerConfig) -> dict[str, Any]:
    """Return the configs of policy, refiners and critic by the keys of their paths; a shared model is read once.

    Raises:
        ValueError: If a config cannot be read, or does not say how long a context may be.
    """
    model = config.actor_rollout_ref.model
    configs = {MODEL_KEY: _hf_config(model, MODEL_KEY)}
    for use in refiner.models:
        is_policys = use.path == model.path
        own = None if is_policys else _hf_config(model_config(config, use.path), use.path_key)
        configs[use.path_key] = own or configs[MODEL_KEY]
    if has_critic(config):
        configs[CRITIC_KEY] = _hf_config(config.critic.model, CRITIC_KEY)
    return configs


def _hf_config(model: DictConfig, key: str) -> Any:
    """Return a model's config, read as verl's servers read it.

    Raises:
        ValueError: If the config cannot be read, or does not say how long a context may be.
    """
    names = ("path", "trust_remote_code", "external_lib", *MODEL_SHAPE_KEYS)
    block: Any = OmegaConf.to_container(model, resolve=True)
    settings = {name: block[name] for name in names if name in block}
    try:
        return _read_config(settings)
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0]
    if (name := _wrong_override(settings)) is None:
        raise ValueError(f"{key}={model.path}: {reason}")
    raise ValueError(
        f"{key.removesuffix('.path')}.override_config.{name}={settings['override_config'][name]}: verl cannot set it "
        f"({reason}); write it into config.json of a copy of the model instead"
    )


def _wrong_override(settings: dict[str, Any]) -> str | None:
    """Return the key of ``override_config`` without which a model's config can be read, if there is one."""
    overrides = settings.get("override_config") or {}
    for name in overrides:
        others = {other: value for other, value in overrides.items() if other != name}
        try:
            _read_config({**settings, "override_config": others})
        except UNREADABLE:
            continue
        return str(name)
    return None


def _read_config(settings: dict[str, Any]) -> Any:
    """Return the config of a model of which verl's block has these settings."""
    found = HFModelConfig(**settings, load_tokenizer=False).hf_config
    get_max_position_embeddings(found)
    return found
