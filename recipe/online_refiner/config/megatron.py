"""What verl's Megatron engine asks of a run. This module needs neither torch nor verl."""

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.preflight.rules import has_critic


def micro_batch_group(engine: Mapping[str, Any]) -> int:
    """Return the number by which a data-parallel rank's micro-batches must be divisible, by verl's engine block.

    Megatron's interleaved pipeline stages take micro-batches in groups; by default a group has one per stage.
    """
    if (engine.get("virtual_pipeline_model_parallel_size") or 1) == 1:
        return 1
    own = engine["override_transformer_config"].get("microbatch_group_size_per_vp_stage")
    return int(own or engine["pipeline_model_parallel_size"])


def layout(config: DictConfig) -> dict[str, int]:
    """Return the size for each kind of parallelism; their product is the number of GPUs."""
    engine, num_gpus = config.actor_rollout_ref.actor.megatron, config.trainer.nnodes * config.trainer.n_gpus_per_node
    sizes = {name: engine[f"{name}_model_parallel_size"] for name in ("tensor", "pipeline")}
    sizes["context"] = engine.context_parallel_size
    return {**sizes, "data": max(1, num_gpus // math.prod(sizes.values()))}


def refusal(config: DictConfig) -> str | None:
    """Return one line if platform, optimizer or adapters do not fit the training engine, Megatron or another."""
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    rank = OmegaConf.select(model, "lora.rank", default=0)
    if line := _other_strategy(config):
        return line
    if "megatron" not in actor:
        own = "actor_rollout_ref.model.lora"
        said = f"{own}.rank={rank} is Megatron's; set {own}_rank, or all weights are trained"
        return said if rank > 0 else None
    if not actor.megatron.use_distributed_optimizer:
        return (
            "actor_rollout_ref.actor.megatron.use_distributed_optimizer=false: verl could not send the weights to the "
            "rollout; set it to true"
        )
    critic = {"critic": config.critic} if has_critic(config) else {}
    for name, role in {"actor_rollout_ref.actor": actor, **critic}.items():
        if role.optim.optimizer.lower() == "sgd" and role.megatron.use_distributed_optimizer:
            return f"{name}.optim.optimizer={role.optim.optimizer}: Megatron's distributed optimizer is Adam"
    if actor.megatron.vanilla_mbridge and max(rank, model.lora_rank) > 0:
        return (
            "actor_rollout_ref.model.lora.rank above 0 needs Megatron-Bridge: set "
            "actor_rollout_ref.actor.megatron.vanilla_mbridge=false (which the CPU platform does not have)"
        )
    return None


def _other_strategy(config: DictConfig) -> str | None:
    """Return one line if a strategy differs from the engine whose settings the blocks have (``model_engine``)."""
    has_settings = "megatron" in config.actor_rollout_ref.actor
    chosen = "megatron" if has_settings else "dp"
    for key in ("actor_rollout_ref.actor", "actor_rollout_ref.ref", *(["critic"] if has_critic(config) else [])):
        strategy = OmegaConf.select(config, f"{key}.strategy")
        if strategy is None or (strategy == "megatron") == has_settings:
            continue
        if has_settings and config.trainer.device == "cpu":
            return (
                f"model_engine=megatron, but {key}.strategy={strategy}: set platform=cpu_megatron and drop "
                f"{key}.strategy, or drop model_engine"
            )
        other = "drop model_engine" if has_settings else "set model_engine=megatron"
        return f"model_engine={chosen}, but {key}.strategy={strategy}: drop {key}.strategy, or {other}"
    return None
