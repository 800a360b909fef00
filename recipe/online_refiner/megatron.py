"""What verl's Megatron engine asks of a run. Needs neither torch nor verl."""

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from recipe.online_refiner.blocks import CRITIC_ESTIMATORS


def rows_multiple(engine: Mapping[str, Any], micro_batch_size: int | None) -> int:
    """Return what the number of a data-parallel rank's rows has to be a multiple of.

    Megatron's interleaved pipeline stages take micro-batches in groups, of as many as there are stages by default.

    Args:
        engine: verl's block of engine settings.
        micro_batch_size: None where micro-batches have as many rows as fit (dynamic).
    """
    size = micro_batch_size or 1
    if (engine.get("virtual_pipeline_model_parallel_size") or 1) == 1:
        return size
    own = engine["override_transformer_config"].get("microbatch_group_size_per_vp_stage")
    return size * (own or engine["pipeline_model_parallel_size"])


def layout(config: DictConfig) -> dict[str, int]:
    """Return the sizes of the kinds of parallelism; their product is the number of GPUs."""
    engine, num_gpus = config.actor_rollout_ref.actor.megatron, config.trainer.nnodes * config.trainer.n_gpus_per_node
    sizes = {name: engine[f"{name}_model_parallel_size"] for name in ("tensor", "pipeline")}
    sizes["context"] = engine.context_parallel_size
    return {**sizes, "data": max(1, num_gpus // math.prod(sizes.values()))}


def check(config: DictConfig) -> None:
    """Check what would end a run on Megatron minutes after its start.

    Raises:
        ValueError: One line that names the key and says what to set.
    """
    actor = config.actor_rollout_ref.actor
    if "megatron" not in actor:
        return
    if actor.strategy != "megatron":
        raise ValueError(
            f"model_engine=megatron, but actor_rollout_ref.actor.strategy={actor.strategy}: set platform=cpu_megatron, "
            "or another model_engine"
        )
    if not actor.megatron.use_distributed_optimizer:
        raise ValueError(
            "actor_rollout_ref.actor.megatron.use_distributed_optimizer=false: verl could not send the weights to the "
            "rollout; set it to true"
        )
    critic = {"critic": config.critic} if config.algorithm.adv_estimator in CRITIC_ESTIMATORS else {}
    for name, role in {"actor_rollout_ref.actor": actor, **critic}.items():
        if role.optim.optimizer.lower() == "sgd" and role.megatron.use_distributed_optimizer:
            raise ValueError(f"{name}.optim.optimizer={role.optim.optimizer}: Megatron's distributed optimizer is Adam")
    model = config.actor_rollout_ref.model
    if actor.megatron.vanilla_mbridge and (model.lora_rank > 0 or model.lora.get("rank", 0) > 0):
        raise ValueError(
            "actor_rollout_ref.model.lora.rank above 0 needs Megatron-Bridge: set "
            "actor_rollout_ref.actor.megatron.vanilla_mbridge=false (which the CPU platform does not have)"
        )
    _check_rows(config)


def _check_rows(config: DictConfig) -> None:
    """Verl fills up a batch to whole mini-batches; each share of one must be whole groups of micro-batches."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    engine = actor.megatron
    if (engine.get("virtual_pipeline_model_parallel_size") or 1) == 1:
        return
    num_shares = layout(config)["data"]
    num_rows = actor.ppo_mini_batch_size * rollout.n // num_shares
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
        "rollout.log_prob_micro_batch_size_per_gpu": (
            None if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        ),
    }
    for name, of_micro_batch in sizes.items():
        multiple = rows_multiple(engine, of_micro_batch)
        if num_rows % multiple:
            raise ValueError(
                f"actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size: a rank's {num_rows} rows of a "
                f"mini-batch (actor.ppo_mini_batch_size * rollout.n / {num_shares}) are no multiple of {multiple} "
                f"(actor_rollout_ref.{name} times the pipeline's stages); change one of them"
            )
