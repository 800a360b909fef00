"""The config group composes with verl's trainer config, and verl accepts the result."""

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from recipe.cpu_platform import vllm_extension

SEARCH = "hydra.searchpath=[pkg://recipe.cpu_platform.config]"


def compose_with(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[SEARCH, *overrides])


@pytest.mark.filterwarnings("error:.*is not available:UserWarning")
def test_cpu_settings_reach_every_role() -> None:
    config = compose_with("+platform=cpu", "trainer.n_gpus_per_node=2")
    OmegaConf.resolve(config)
    assert config.trainer.device == "cpu"
    assert config.ray_kwargs.ray_init.num_gpus == 2
    for role in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref, config.critic):
        assert role.strategy == "fsdp2"
        engine = role.fsdp if "fsdp" in role else role.fsdp_config
        assert engine.mixed_precision.param_dtype == "fp32"
        assert not engine.use_torch_compile
    for model in (config.actor_rollout_ref.model, config.critic.model):
        assert model.override_config.attn_implementation == "sdpa"
        assert not model.use_remove_padding
    for rollout in (config.actor_rollout_ref.rollout, config.reward.reward_model.rollout):
        assert not rollout.free_cache_engine
        assert not rollout.enable_sleep_mode
        assert rollout.tensor_model_parallel_size == 1


def test_command_line_wins_over_the_group() -> None:
    assert (
        compose_with("+platform=cpu", "actor_rollout_ref.rollout.dtype=bfloat16").actor_rollout_ref.rollout.dtype
        == "bfloat16"
    )


def test_actor_and_reference_get_the_engine_for_responses() -> None:
    from recipe.cpu_platform import response_logits

    assert compose_with("+platform=cpu").actor_rollout_ref.model.external_lib == response_logits.__name__


def test_trained_roles_keep_full_parameters_and_the_reference_does_not() -> None:
    config = compose_with("+platform=cpu")
    assert not config.actor_rollout_ref.actor.fsdp_config.reshard_after_forward
    assert not config.critic.fsdp.reshard_after_forward
    assert config.actor_rollout_ref.ref.fsdp_config.reshard_after_forward


@pytest.mark.parametrize(
    ("overrides", "expected", "fused"),
    [
        ([], torch.optim.AdamW, True),
        (["optimizer=SGD", "override_optimizer_config={momentum:0.9}"], torch.optim.SGD, None),
        (["optimizer=SGD"], torch.optim.SGD, True),
        (["optimizer=RMSprop", "override_optimizer_config=null"], torch.optim.RMSprop, None),
    ],
)
@pytest.mark.parametrize("role", ["actor_rollout_ref.actor", "critic"])
def test_optimizer_is_fused_where_it_can(role: str, overrides: list[str], expected: type, fused: bool | None) -> None:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config.optimizer import build_optimizer

    config = compose_with("+platform=cpu", *(f"{role}.optim.{override}" for override in overrides))
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([parameter], omega_conf_to_dataclass(OmegaConf.select(config, role).optim))
    assert type(optimizer) is expected
    assert optimizer.defaults.get("fused") is fused
    assert optimizer.defaults.get("momentum", 0) == (0.9 if "momentum" in str(overrides) else 0)
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert (parameter < 1).all()


def test_gpu_group_changes_nothing() -> None:
    assert compose_with("+platform=gpu") == compose_with()


def test_worker_extension_is_found_by_its_name() -> None:
    name = compose_with("+platform=cpu").actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls
    cls = vllm_extension.CpuWorkerExtension
    assert name == f"{cls.__module__}.{cls.__qualname__}"


@pytest.mark.parametrize("block", ["actor", "rollout"])
def test_verls_dataclasses_accept_the_config(block: str) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    sizes = [
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    ]
    config = compose_with("+platform=cpu", *sizes)
    omega_conf_to_dataclass(config.actor_rollout_ref[block])


def test_megatron_settings_reach_every_role_and_verl_accepts_them() -> None:
    from verl.utils.config import omega_conf_to_dataclass

    config = compose_with("+platform=cpu_megatron")
    for role in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref, config.critic):
        assert role.strategy == "megatron"
        assert omega_conf_to_dataclass(role.megatron).dtype == "float32"
        assert role.megatron.vanilla_mbridge
    assert config.actor_rollout_ref.model.use_remove_padding  # packed sequences
    assert not config.actor_rollout_ref.rollout.free_cache_engine  # what every engine has on the CPU
