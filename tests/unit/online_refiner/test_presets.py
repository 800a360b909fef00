"""Every preset composes, holds the paper's numbers, and its arms differ in nothing else."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner import config as package
from recipe.online_refiner.config.checks import load
from recipe.online_refiner.method.modes import Sft

CONFIG = Path(package.__file__).parent
PRESETS = sorted(path.stem for path in (CONFIG / "experiment").glob("*.yaml"))
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
    ("preset", "engine"),
    [*((one, None) for one in PRESETS), ("apps_ppo", "model_engine=megatron"), ("quickstart", "platform=cpu_megatron")],
)
def test_every_preset_composes(preset: str, engine: str | None) -> None:
    config = composed(f"experiment={preset}", *([engine] if engine else []))
    load(config)
    assert config.trainer.experiment_name == preset, (
        f"{preset}.yaml: set trainer.experiment_name to {preset}, else its runs share the folder of another preset"
    )
    assert flat(config), "every interpolation resolves"
    strategy = config.actor_rollout_ref.actor.strategy
    if engine or preset.endswith("_megatron"):
        assert strategy == "megatron"
    if config.trainer.device == "cpu":
        assert strategy != "fsdp", "FSDP1 refuses to run without an accelerator"


@pytest.mark.parametrize("preset", [one for one in PRESETS if one.startswith(("apps_", "dialogue_"))])
def test_in_the_papers_presets_the_reward_alone_decides(preset: str) -> None:
    refiner = load(composed(f"experiment={preset}")).refiner
    assert not refiner.reject_leaks and refiner.samples == 1 and not refiner.context
    assert (refiner.max_refinements_per_group, refiner.only_unsolved, refiner.budget) == (None, False, None)


def test_the_preset_for_ones_own_needs_model_data_and_reward_only(tiny_llama: Path, tmp_path: Path) -> None:
    """The README's example: a table and a reward function in a folder of the user."""
    rows = [{"question": f"What is {number} + 1?", "answer": number + 1} for number in range(80)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my_reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(str(int(ground_truth)) in solution_str)\n"
    )

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "recipe.commands", *words]
        path = os.pathsep.join([str(CONFIG.parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("prepare", "rows", "questions.jsonl", "--output", "data")
    own = [f"actor_rollout_ref.model.path={tiny_llama}", "reward.custom_reward_function.path=my_reward.py"]
    own += ["data.train_files=data/train.parquet", "data.val_files=data/val.parquet"]
    gpu = ["data.filter_overlong_prompts=false", "sizing.gpu_memory_gib=80"]  # this machine may have none
    plan = run("train", "experiment=grpo", *own, *gpu, "dry_run=reward")
    assert "on 1 x 1 cuda workers" in plan and "8 responses each" in plan and "What is 0 + 1?" in plan


def test_what_is_asked_for_beside_a_platform_wins() -> None:
    on_gpu = composed("experiment=quickstart", "platform=gpu")
    assert (on_gpu.trainer.device, on_gpu.trainer.total_training_steps) == ("cuda", 30)
    asked = composed("experiment=quickstart", "platform=gpu", "trainer.total_training_steps=2")
    assert asked.trainer.total_training_steps == 2 and load(asked).refiner.response_length == 192


@pytest.mark.parametrize("preset", DYNAMIC)
def test_with_eta_zero_a_dynamic_arm_is_its_arm_without_constraint(preset: str) -> None:
    """What eta = 0 computes is verl's own step: test_main_job.py. Here: nothing else sets the arms apart."""
    dynamic, none = flat(composed(f"experiment={preset}")), flat(composed(f"experiment={preset}_none"))
    names = {key for key in dynamic if dynamic[key] != none[key]}
    assert dynamic.keys() == none.keys()
    assert {name for name in names if not name.endswith("experiment_name")} == {
        "constraint.mode",
        "run_dir",
        "records.path",
        "trainer.default_local_dir",
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
        config.data.train_batch_size,
        actor.ppo_mini_batch_size,
        actor.ppo_epochs,
        config.trainer.total_epochs,
        config.trainer.total_training_steps,
        config.constraint.eta,
        actor.optim.lr,
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
        "use_kl_loss",
        "kl_loss_coef",
        "use_kl_in_reward",
        "kl_coef",
        "log_prob_micro_batch_size_per_gpu",
        "mode",
        "experiment_name",
        "run_dir",
        "path",
        "default_local_dir",
    }


@pytest.mark.parametrize("preset", ["apps_dapo", "apps_ppo", "quickstart"])
def test_a_second_sample_takes_the_place_of_a_refinement(preset: str) -> None:
    config = composed(f"experiment={preset}", "control=resample")
    loaded, alone, other = load(config), flat(composed(f"experiment={preset}")), flat(config)
    assert isinstance(loaded.constraint, Sft) and loaded.constraint.first_eta == 0.03
    assert loaded.refiner.temperature == other["actor_rollout_ref.rollout.temperature"] == 1.0
    own = {*(f"constraint.{key}" for key in ("mode", "eta")), "run_dir", "records.path", "trainer.default_local_dir"}
    own |= {f"refiner.{key}" for key in ("template", "context", "temperature")}
    assert {key for key in alone if alone[key] != other[key]} <= own


def test_a_twin_of_a_control_has_a_folder_of_its_own() -> None:
    folders = [
        composed("experiment=apps_dapo", "twin=cpu", *control).run_dir for control in ((), ("control=resample",))
    ]
    assert folders == ["runs/twins/apps_dapo", "runs/twins/apps_dapo-resample"]


@pytest.mark.parametrize("preset", ["apps_dapo", "apps_ppo", "quickstart"])
def test_a_control_changes_what_is_learned_and_where_it_is_written(preset: str) -> None:
    config = composed(f"experiment={preset}", "control=own_solved")
    loaded, alone, other = load(config), flat(composed(f"experiment={preset}")), flat(config)
    assert isinstance(loaded.constraint, Sft) and loaded.constraint.imitate_solved
    assert loaded.constraint.first_eta == 0.03, "the mode's own: that of the preset is a penalty's"
    assert other["run_dir"] == f"{alone['run_dir']}-own_solved", (
        "not the preset's own, whose checkpoints it would resume"
    )
    own = {*(f"constraint.{key}" for key in ("mode", "eta")), "run_dir", "records.path"}
    own |= {"constraint.imitate_solved", "refiner.max_refinements_per_group", "trainer.default_local_dir"}
    assert {key for key in alone if alone[key] != other[key]} <= own


def test_a_preset_of_a_users_own_folder_begins_with_one_of_the_package(tmp_path: Path) -> None:
    """The file is the one that ``docs/running.md`` shows; a command reads it, since ``--config-dir`` is its option."""
    (tmp_path / "experiment").mkdir()
    lines = [
        "# @package _global_",
        "defaults: [grpo, _self_]",
        "trainer: {experiment_name: my_task}",
        "data: {max_response_length: 2048}",
    ]
    (tmp_path / "experiment/my_task.yaml").write_text("\n".join(lines))
    command = ["-m", "recipe.online_refiner.main", "--config-dir", str(tmp_path), "experiment=my_task", "--cfg", "job"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = OmegaConf.create(done.stdout)
    assert (found.trainer.experiment_name, found.data.max_response_length) == ("my_task", 2048)
    assert found.algorithm.adv_estimator == "grpo"
