"""What verl's Megatron engine asks of a run. Needs neither torch nor verl."""

import math
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig


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
