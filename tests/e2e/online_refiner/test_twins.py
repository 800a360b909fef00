"""Every preset's CPU twin passes all checks before Ray; `scripts/run_twins.sh` runs them."""

import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from recipe.online_refiner import main, schema

CONFIG = Path(schema.__file__).parent / "config"
PRESETS = sorted(path.stem for path in (CONFIG / "experiment").glob("*.yaml"))
BASES = {"apps_dapo", "apps_ppo", "dialogue_ppo"}  # the others change a few of their keys
REPOSITORY = CONFIG.parents[2]


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("online_refiner", overrides=list(overrides))


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mini_apps")
    command = [sys.executable, "scripts/prepare_data.py", "mini-apps", "--level", "easy", "--output", str(folder)]
    subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True)
    return folder


@pytest.mark.e2e
@pytest.mark.parametrize(
    "preset", [preset if preset in BASES else pytest.param(preset, marks=pytest.mark.slow) for preset in PRESETS]
)
def test_every_twin_passes_the_checks(preset: str, tiny_llama: Path, problems: Path) -> None:
    config = composed(
        f"experiment={preset}",
        "twin=cpu_megatron" if preset.endswith("_megatron") else "twin=cpu",
        *(f"{model}={tiny_llama}" for model in ("actor_rollout_ref.model.path", "reward.reward_model.model_path")),
        *(f"data.{name}_files={problems}/{name}.parquet" for name in ("train", "val")),
    )
    plan = main.prepare(config)
    assert "steps          2" in plan
    assert f"mode {composed(f'experiment={preset}').constraint.mode}" in plan
