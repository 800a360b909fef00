"""The config group composes with verl's trainer config, and verl accepts the result."""

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

SEARCH = "hydra.searchpath=[pkg://recipe.cpu_platform.config]"


def compose_with(*overrides: str) -> DictConfig:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[SEARCH, *overrides])


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
