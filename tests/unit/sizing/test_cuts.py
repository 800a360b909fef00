"""GPUs that share a model have equal shares of it, as the engines assert once they have loaded it."""

from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from composed_main import base, composed
from omegaconf import OmegaConf

from recipe.online_refiner.config.checks import load
from recipe.preflight.rules import has_critic
from recipe.sizing import cuts, shapes

SMOLLM2 = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "intermediate_size": 1536,
}
TENSOR, ULYSSES = "tensor_model_parallel_size", "ulysses_sequence_parallel_size"
ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
UNEVEN = "{num_layers_in_last_pipeline_stage: 6}"
PIPELINE = f"{ACTOR}.megatron.pipeline_model_parallel_size"


def refused(*overrides: str, engine: str | None = None, **changes: Any) -> list[str]:
    """Return the lines on SmolLM2-135M, whose config has these changes."""
    if engine:
        config = base(engine).copy()
        for override in overrides:
            key, _, value = override.partition("=")
            OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
    else:
        config = composed(*overrides)
    blocks, shape = load(config), shapes.read({**SMOLLM2, **changes})
    refiner = OmegaConf.merge(config.actor_rollout_ref.rollout, config.refiner.rollout)
    hosted = SimpleNamespace(use=SimpleNamespace(key="refiner"), rollout=refiner, shape=shape)
    plan = SimpleNamespace(policy_shape=shape, hosted=[hosted])
    plan.critic_shape = shape if has_critic(config) else None
    return [line for one in cuts.cuts(config, blocks, plan) if (line := one.refusal())]


NONE = (f"{ROLLOUT}.{TENSOR}=1",)


@pytest.mark.parametrize(
    ("overrides", "changes", "keys"),
    [
        (NONE, {}, []),
        ((f"{ROLLOUT}.{TENSOR}=3",), {}, []),
        ((f"{ROLLOUT}.{TENSOR}=2",), {}, [f"{ROLLOUT}.{TENSOR}=2", f"refiner.rollout.{TENSOR}=2"]),
        ((*NONE, f"+refiner.rollout.{TENSOR}=2"), {}, [f"refiner.rollout.{TENSOR}=2"]),
        ((*NONE, "refiner.placement=external", "refiner.url=http://h/v1"), {}, []),
        ((*NONE, f"{ACTOR}.fsdp_config.{ULYSSES}=2"), {}, [f"{ACTOR}.fsdp_config.{ULYSSES}=2"]),
        ((*NONE, f"critic.fsdp.{ULYSSES}=2"), {}, []),
        ((*NONE, f"critic.fsdp.{ULYSSES}=2", "critic.enable=true"), {}, [f"critic.fsdp.{ULYSSES}=2"]),
        (
            (*NONE, f"actor_rollout_ref.ref.fsdp_config.{ULYSSES}=2", f"{ACTOR}.use_kl_loss=true"),
            {},
            [f"actor_rollout_ref.ref.fsdp_config.{ULYSSES}=2"],
        ),
        # Key-value heads are shared, or repeated.
        ((*NONE, f"{ACTOR}.fsdp_config.{ULYSSES}=4"), {"num_attention_heads": 8, "num_key_value_heads": 2}, []),
        (
            (*NONE, f"{ACTOR}.fsdp_config.{ULYSSES}=4"),
            {"num_attention_heads": 12},
            [f"{ACTOR}.fsdp_config.{ULYSSES}=4"],
        ),
    ],
)
def test_heads(overrides: tuple[str, ...], changes: dict[str, int], keys: list[str]) -> None:
    found = refused(*overrides, **changes)
    assert [line.partition(": ")[0] for line in found] == keys
    assert all("; set a divisor of " in line for line in found)


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ((), []),
        ((f"{ACTOR}.megatron.{TENSOR}=2",), [f"{ACTOR}.megatron.{TENSOR}=2"]),
        ((f"{PIPELINE}=2",), []),
        ((f"{PIPELINE}=4",), [f"{PIPELINE}=4"]),
        (
            (f"{PIPELINE}=4", f"{ACTOR}.megatron.override_transformer_config={{num_layers_in_last_pipeline_stage: 6}}"),
            [],
        ),
        (
            (f"{PIPELINE}=2", f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size=2"),
            [f"{PIPELINE} * {ACTOR}.megatron.virtual_pipeline_model_parallel_size=4"],
        ),
    ],
)
def test_layers_and_heads_of_megatron(overrides: tuple[str, ...], keys: list[str]) -> None:
    found = refused(*NONE, *overrides, engine="megatron")
    assert [line.partition(": ")[0] for line in found] == keys
