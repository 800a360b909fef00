"""Every preset composes, holds the paper's numbers, and its arms differ in nothing else."""

import functools
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner import config as package
from recipe.online_refiner.config.checks import load

CONFIG = Path(package.__file__).parent
PRESETS = sorted(path.stem for path in (CONFIG / "experiment").glob("*.yaml"))
BASES = ("apps_dapo", "apps_ppo", "dialogue_ppo", "gsm8k_grpo", "lab", "quickstart")
"""The others change a few of their keys."""
DYNAMIC = [name for name in PRESETS if f"{name}_none" in PRESETS]


@functools.cache
def composed(*overrides: str) -> DictConfig:
    """Compose the main config (a second); tests must not change it."""
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("online_refiner", overrides=list(overrides))


def flat(config: DictConfig) -> dict[str, Any]:
    values: dict[str, Any] = {}

    def collect(prefix: str, node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                collect(f"{prefix}{key}.", value)
        else:
            values[prefix[:-1]] = node

    collect("", OmegaConf.to_container(config, resolve=True))
    return values


@pytest.mark.parametrize(
    ("preset", "on_megatron"), [*((preset, False) for preset in PRESETS), *((preset, True) for preset in BASES)]
)
def test_every_preset_composes(preset: str, on_megatron: bool) -> None:
    is_for_cpus = preset in ("quickstart", "lab", "lab_sums")
    override = "platform=cpu_megatron" if is_for_cpus else "model_engine=megatron"
    config = composed(f"experiment={preset}", *([override] if on_megatron else []))
    load(config)
    assert config.trainer.experiment_name == preset
    assert flat(config), "every interpolation resolves"
    is_on_megatron = on_megatron or preset == "apps_dapo_megatron"
    expected = "megatron" if is_on_megatron else "fsdp2" if is_for_cpus else "fsdp"
    assert config.actor_rollout_ref.actor.strategy == expected


def test_the_quickstart_on_a_gpu_is_for_one_gpu() -> None:
    config = composed("experiment=quickstart", "platform=gpu")
    loaded, rollout = load(config), config.actor_rollout_ref.rollout
    assert (config.trainer.device, config.trainer.n_gpus_per_node, config.trainer.nnodes) == ("cuda", 1, 1)
    assert (rollout.tensor_model_parallel_size, rollout.dtype, rollout.free_cache_engine) == (1, "bfloat16", True)
    assert rollout.gpu_memory_utilization == 0.3 and not config.algorithm.rollout_correction.bypass_mode
    assert config.actor_rollout_ref.model.use_remove_padding and loaded.refiner.response_length == 192
    assert config.trainer.save_freq == config.trainer.total_training_steps == 30
    on_cpu = composed("experiment=quickstart")
    assert (on_cpu.trainer.device, on_cpu.trainer.total_training_steps) == ("cpu", 8)
    asked = composed(
        "experiment=quickstart", "platform=gpu", "trainer.total_training_steps=2", "data.train_batch_size=8"
    )
    assert (asked.trainer.total_training_steps, asked.data.train_batch_size) == (2, 8), "what is asked for wins"


def test_the_megatron_preset_is_apps_dapo_on_another_engine() -> None:
    preset, stock = flat(composed("experiment=apps_dapo_megatron")), flat(composed("experiment=apps_dapo"))
    method = [name for name in preset if name.startswith(("algorithm.", "constraint.", "data.", "reward.", "refiner."))]
    assert {name for name in method if preset[name] != stock[name]} == {"refiner.model_path"}
    optimizer = ("lr", "weight_decay", "clip_grad", "lr_warmup_steps")
    names = {f"actor_rollout_ref.actor.optim.{name}" for name in optimizer}
    names |= {f"actor_rollout_ref.actor.{name}" for name in ("ppo_mini_batch_size", "clip_ratio_high", "loss_agg_mode")}
    assert {name: preset[name] for name in names} == {name: stock[name] for name in names}


@pytest.mark.parametrize("preset", DYNAMIC)
def test_with_eta_zero_a_dynamic_arm_is_its_arm_without_constraint(preset: str) -> None:
    """What eta = 0 computes is verl's own step: test_main_job.py. Here: nothing else sets the arms apart."""
    dynamic, none = flat(composed(f"experiment={preset}")), flat(composed(f"experiment={preset}_none"))
    names = {key for key in dynamic if dynamic[key] != none[key]}
    assert dynamic.keys() == none.keys()
    assert {name for name in names if not name.endswith("experiment_name")} == {
        *("constraint.mode", "run_dir", "records.path", "trainer.default_local_dir")
    }


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("apps_ppo", (128, 128, 4, 7, 200, 1e-4, 1e-6, 9e-6)),
        ("dialogue_ppo", (64, 64, 1, 1, 430, 1e-2, 1e-6, 9e-6)),
        ("apps_dapo", (64, 8, 1, 5, 150, 1e-4, 1e-6, None)),
    ],
)
def test_the_papers_tables(preset: str, expected: tuple[float | None, ...]) -> None:
    config = composed(f"experiment={preset}")
    actor = config.actor_rollout_ref.actor
    found = (
        *(config.data.train_batch_size, actor.ppo_mini_batch_size, actor.ppo_epochs, config.trainer.total_epochs),
        *(config.trainer.total_training_steps, config.constraint.eta, actor.optim.lr),
        config.critic.optim.lr if config.algorithm.adv_estimator == "gae" else None,
    )
    assert found == expected


@pytest.mark.parametrize(("preset", "coefficient"), [("apps_ppo", 1e-4), ("dialogue_ppo", 1e-2), ("apps_dapo", 1e-2)])
def test_the_papers_baselines_have_a_static_kl(preset: str, coefficient: float) -> None:
    baseline, arm = flat(composed(f"experiment={preset}_static_kl")), flat(composed(f"experiment={preset}"))
    by_loss = baseline["actor_rollout_ref.actor.use_kl_loss"]
    assert by_loss is (preset == "apps_dapo") and baseline["algorithm.use_kl_in_reward"] is not by_loss
    key = "actor_rollout_ref.actor.kl_loss_coef" if by_loss else "algorithm.kl_ctrl.kl_coef"
    assert baseline[key] == coefficient
    names = {name.rpartition(".")[2] for name in arm if arm[name] != baseline[name]}
    assert names <= {
        *("use_kl_loss", "kl_loss_coef", "use_kl_in_reward", "kl_coef", "log_prob_micro_batch_size_per_gpu", "mode"),
        *("experiment_name", "run_dir", "path", "default_local_dir"),
    }


@pytest.mark.parametrize("preset", ["apps_dapo", "apps_ppo", "lab", "quickstart"])
def test_a_control_changes_what_is_learned_and_where_it_is_written(preset: str) -> None:
    config = composed(f"experiment={preset}", "control=own_solved")
    loaded, alone, other = load(config), flat(composed(f"experiment={preset}")), flat(config)
    assert (loaded.constraint.mode, loaded.refiner.imitate_solved) == ("sft", True)
    assert loaded.constraint.first_eta == 0.03, "the mode's own: that of the preset is a penalty's"
    assert other["run_dir"] == f"{alone['run_dir']}-own_solved", (
        "not the preset's own, whose checkpoints it would resume"
    )
    own = {*(f"constraint.{key}" for key in ("mode", "eta")), "run_dir", "records.path"}
    own |= {"refiner.imitate_solved", "refiner.max_refinements_per_group", "trainer.default_local_dir"}
    assert {key for key in alone if alone[key] != other[key]} <= own
