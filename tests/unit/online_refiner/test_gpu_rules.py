"""Rules of GPUs: attention without flash-attn (what it computes, test_backends.py says), memory that expands."""

from types import SimpleNamespace

import pytest
from composed_main import composed
from omegaconf import OmegaConf

from recipe.online_refiner import critic_attention
from recipe.online_refiner.config.checks import Run, check, load
from recipe.preflight import attention, machine
from recipe.preflight.attention import CRITIC_LIBRARY, choose_attention, chosen_attention

ACTOR = "actor_rollout_ref.model"
CHOICE = "override_config.attn_implementation"


@pytest.fixture(params=[True, False])
def is_installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for module in (attention, machine):
        monkeypatch.setattr(module, "has_flash_attention", lambda: request.param)
    return request.param


def error_of(*overrides: str) -> str:
    config = composed(*overrides)
    run = Run(config=config, blocks=load(config))
    choose_attention(config)
    run.files = SimpleNamespace(num_devices=None)
    try:
        check(run, "machine")
    except ValueError as error:
        return str(error)
    return ""


def test_pytorchs_attention_where_flash_attention_is_missing(is_installed: bool) -> None:
    config = composed(f"+{ACTOR}.override_config.rope_theta=5", "algorithm.adv_estimator=gae")
    line = choose_attention(config)
    assert (line is None) is is_installed
    attention, library = (None, None) if is_installed else ("sdpa", CRITIC_LIBRARY)
    for model in (config.actor_rollout_ref.model, config.critic.model):
        assert chosen_attention(model) == attention
    assert config.critic.model.external_lib == library and critic_attention.__name__ == CRITIC_LIBRARY
    assert config.actor_rollout_ref.model.override_config.rope_theta == 5
    assert choose_attention(config) is None, "it is said once"
    if line:
        assert "\n" not in line and f"{ACTOR}.{CHOICE}=sdpa" in line
    alone = composed()
    choose_attention(alone)
    assert chosen_attention(alone.critic.model) is None, "no critic is trained"


@pytest.mark.parametrize(
    "override", [f"+{ACTOR}.{CHOICE}=eager", "trainer.device=cpu", "actor_rollout_ref.actor.strategy=veomni"]
)
def test_what_is_left_alone(is_installed: bool, override: str) -> None:
    config = composed(override)
    before = OmegaConf.to_container(config)
    assert choose_attention(config) is None and OmegaConf.to_container(config) == before


def test_flash_attention_that_is_asked_for_has_to_be_there(is_installed: bool) -> None:
    found = error_of(f"+{ACTOR}.{CHOICE}=flash_attention_2")
    assert found.endswith(" [flash-attention-is-installed]") is not is_installed
    assert error_of() == ""


def test_sequence_parallelism_needs_flash_attention(is_installed: bool) -> None:
    size = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"
    rule = "[sequences-are-shared-by-flash-attention]"
    assert error_of(size).endswith(rule) is not is_installed
    assert error_of(size, f"+{ACTOR}.{CHOICE}=sdpa").endswith(rule)
    assert error_of(size.replace("=2", "=1")) == ""


def test_expandable_segments_by_the_name_that_vllm_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "[segments-expand-where-vllm-sees-it]"
    assert rule not in error_of()
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "garbage_collection_threshold:0.8, expandable_segments: True")
    assert error_of().endswith(f"set PYTORCH_CUDA_ALLOC_CONF {rule}")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    assert rule not in error_of()
    assert rule in error_of("+ray_kwargs.ray_init.runtime_env.env_vars.PYTORCH_ALLOC_CONF='expandable_segments:True'")
