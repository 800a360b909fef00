"""Rules of the machine: attention without flash-attn (what it computes, test_backends.py says), memory, packages."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from composed_main import composed
from omegaconf import OmegaConf
from other_device import Ascend
from verl.plugin.platform import platform_manager
from verl.utils import torch_functional

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.verl_glue.hosting import memory
from recipe.preflight import attention, machine  # noqa: F401  # its rules
from recipe.preflight.attention import LIBRARY, choose_attention, chosen_attention
from recipe.preflight.rules import PlannedRun, check

ACTOR = "actor_rollout_ref.model"
CHOICE = "override_config.attn_implementation"


@pytest.fixture(params=[True, False])
def is_installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(attention, "has_flash_attention", lambda _: request.param)
    return request.param


def error_of(*overrides: str) -> str:
    config = composed(*overrides)
    run = PlannedRun(config=config, blocks=load(config))
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
    attention, library = (None, None) if is_installed else ("sdpa", LIBRARY)
    for model in (config.actor_rollout_ref.model, config.critic.model):
        assert (chosen_attention(model), model.external_lib) == (attention, library)
    assert config.actor_rollout_ref.model.override_config.rope_theta == 5
    assert choose_attention(config) is None, "it is said once"
    if line:
        assert "\n" not in line and f"{ACTOR}.{CHOICE}=sdpa" in line
    alone = composed()
    choose_attention(alone)
    assert chosen_attention(alone.critic.model) is None, "no critic is trained"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2500,), (3, 700)])
def test_log_probs_of_many_tokens_at_once(
    dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = torch_functional.logprobs_from_logits_v2
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", theirs)  # set back afterwards
    monkeypatch.delitem(sys.modules, LIBRARY, raising=False)
    ours = importlib.import_module(LIBRARY).log_probs_of_labels
    assert torch_functional.logprobs_from_logits_v2 is ours, "verl looks it up there"
    logits, labels = torch.randn(*shape, 11, dtype=dtype), torch.randint(11, shape)
    found = {}
    for compute in (theirs, ours):
        leaf = logits.clone().requires_grad_()
        log_probs = compute(leaf, labels)
        (log_probs * torch.linspace(-1, 1, labels.numel()).view(shape)).sum().backward()
        found[compute] = log_probs, leaf.grad
    for one, other in zip(found[theirs], found[ours], strict=True):
        torch.testing.assert_close(one, other, check_stride=False)


@pytest.mark.parametrize(
    "override", [f"+{ACTOR}.{CHOICE}=eager", "trainer.device=cpu", "actor_rollout_ref.actor.strategy=veomni"]
)
def test_what_is_left_alone(is_installed: bool, override: str) -> None:
    config = composed(override)
    before = OmegaConf.to_container(config)
    assert choose_attention(config) is None
    if override.endswith("=eager") and not is_installed:  # log-probs are computed the faster way all the same
        before[ACTOR.split(".")[0]]["model"]["external_lib"] = LIBRARY
    assert OmegaConf.to_container(config) == before


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
    value = "garbage_collection_threshold:0.8, expandable_segments: True"
    assert error_of().endswith(f"set PYTORCH_CUDA_ALLOC_CONF={value} instead {rule}")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    assert rule not in error_of()
    assert rule in error_of("+ray_kwargs.ray_init.runtime_env.env_vars.PYTORCH_ALLOC_CONF='expandable_segments:True'")


@pytest.mark.parametrize("name", ["trl", "trl.experimental.ppo"])
@pytest.mark.parametrize("has_class", [True, False])
def test_a_trl_that_verl_cannot_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, has_class: bool
) -> None:
    folder = tmp_path
    for part in name.split("."):
        folder = folder / part
        folder.mkdir()
        (folder / "__init__.py").touch()
    (folder / "__init__.py").write_text("AutoModelForCausalLMWithValueHead = object" if has_class else "")
    metadata = tmp_path / "trl-1.16.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: trl\nVersion: 1.16.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert ("pip uninstall trl" in error_of()) is not has_class
    finally:
        for module in [module for module in sys.modules if module.split(".")[0] == "trl"]:
            del sys.modules[module]


def test_memory_of_another_vendors_devices_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_manager, "_current_platform", Ascend())
    assert memory._used_gb(None) == 0.0
