"""Whether the GPUs that share a model can share it equally: what engines assert once its weights are loaded."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.sizing.shapes import Shape

UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)
"""Keys of ``override_transformer_config`` that let Megatron's pipeline stages have different numbers of layers."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A model that several GPUs share."""

    key: str
    """The key of the number of GPUs."""
    size: int
    shape: Shape
    what: str = "attention heads"
    """What is shared: attention heads or layers."""

    def refusal(self) -> str | None:
        """Return one line if the GPUs cannot have equal shares.

        Fewer key-value heads than GPUs are repeated, if the GPUs are a multiple of them.
        """
        number = self.shape.num_layers if self.what == "layers" else self.shape.num_heads
        if number % self.size:
            divisor = max(size for size in range(1, self.size) if number % size == 0)
            shared = f"the model has {number} {self.what}, which {self.size} GPUs cannot share equally"
            return f"{self.key}={self.size}: {shared}; set a divisor of {number}, such as {divisor}"
        kv_heads = self.shape.num_kv_heads
        if self.what == "layers" or kv_heads % self.size == 0 or self.size % kv_heads == 0:
            return None
        return (
            f"{self.key}={self.size}: the model has {kv_heads} key-value heads, which {self.size} GPUs can neither "
            "share equally nor repeat equally; set a divisor of it, or a multiple"
        )


def cuts(config: DictConfig, blocks: Any, plan: Any) -> Iterator[Cut]:
    """Yield the models that several GPUs share: the models of the engines, and the trained models.

    Args:
        config: The whole config.
        blocks: This extension's part of it (``RefinementConfig``).
        plan: Shapes of the models (``Plan``).
    """
    tensor = "tensor_model_parallel_size"
    found = [("actor_rollout_ref.rollout", config.actor_rollout_ref.rollout, plan.policy_shape)]
    if blocks.hosts_refiner and blocks.refiner.has_replicas:
        found += [(f"{one.use.key}.rollout", one.rollout, one.shape) for one in plan.hosted]
    for key, rollout, shape in found:
        if shape is not None:
            yield Cut(key=f"{key}.{tensor}", size=rollout[tensor], shape=shape)
    actor = config.actor_rollout_ref
    trained = {"actor_rollout_ref.actor": (actor.actor, plan.policy_shape)}
    if blocks.has_reference_worker:
        trained["actor_rollout_ref.ref"] = (actor.ref, plan.policy_shape)
    if plan.critic_shape is not None:
        trained["critic"] = (config.critic, plan.critic_shape)
    for key, (block, shape) in trained.items():
        if shape is None:
            continue
        if block.strategy == "megatron":
            yield from _megatron(f"{key}.megatron", block.megatron, shape)
        elif block.strategy in ("fsdp", "fsdp2"):
            name = "fsdp" if key == "critic" else "fsdp_config"
            own = "ulysses_sequence_parallel_size"
            yield Cut(key=f"{key}.{name}.{own}", size=block[name].get(own) or 1, shape=shape)


def _megatron(key: str, engine: DictConfig, shape: Shape) -> Iterator[Cut]:
    yield Cut(key=f"{key}.tensor_model_parallel_size", size=engine.get("tensor_model_parallel_size") or 1, shape=shape)
    own = OmegaConf.select(engine, "override_transformer_config") or {}
    if any(own.get(name) for name in UNEVEN):
        return
    pipeline = engine.get("pipeline_model_parallel_size") or 1
    virtual = engine.get("virtual_pipeline_model_parallel_size") or 1
    name = f"{key}.pipeline_model_parallel_size"
    times = f" * {key}.virtual_pipeline_model_parallel_size" if virtual > 1 else ""
    yield Cut(key=f"{name}{times}", size=pipeline * virtual, shape=shape, what="layers")
