"""Which attention the trained models use where flash-attn is not installed.

verl asks for ``flash_attention_2`` unless ``override_config.attn_implementation`` of a model names another one
(``verl/workers/config/model.py``). PyTorch's own attention, ``sdpa``, computes the same from verl's packed sequences
(``use_remove_padding=true``): transformers separates them by their positions.
"""

from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, open_dict

from recipe.preflight.rules import has_critic, is_elsewhere

FLASH, OWN = "flash_attention_2", "sdpa"
LIBRARY = "recipe.online_refiner.verl_glue.without_flash_attn"
"""The module that workers import (``external_lib``), unless the model block names another one."""
STRATEGIES = ("fsdp", "fsdp2")
"""verl's engines that train models of transformers."""


def has_flash_attention(config: DictConfig) -> bool:
    """Return whether flash-attn is installed, or may be: a dry run may plan for another machine."""
    return is_elsewhere(config) or find_spec("flash_attn") is not None


def trained_models(config: DictConfig) -> dict[str, Any]:
    """Return the model blocks that are trained by an engine of ``STRATEGIES``, by their key."""
    models = {}
    if config.actor_rollout_ref.actor.strategy in STRATEGIES:
        models["actor_rollout_ref.model"] = config.actor_rollout_ref.model
    if has_critic(config) and config.critic.strategy in STRATEGIES:
        models["critic.model"] = config.critic.model
    return models


def chosen_attention(model: Any) -> str | None:
    """Return the attention that a model block names; None: verl's default."""
    return (model.override_config or {}).get("attn_implementation")


def choose_attention(config: DictConfig) -> str | None:
    """Let models trained on CUDA devices use PyTorch's attention if flash-attn is missing and the user has chosen none.

    For other devices, transformers has an attention of its own.

    Returns:
        One line about the change, or None if nothing changed.
    """
    if config.trainer.device != "cuda" or has_flash_attention(config):
        return None
    changed = []
    for key, model in trained_models(config).items():
        with open_dict(config):
            if chosen_attention(model) is None:
                model.override_config = {**(model.override_config or {}), "attn_implementation": OWN}
                changed.append(f"{key}.override_config.attn_implementation={OWN}")
            if model.get("external_lib") is None:
                model.external_lib = LIBRARY
    if not changed:
        return None
    return f"flash-attn is not installed, so PyTorch's attention is used: {', '.join(changed)}"
