"""Every preset's CPU twin passes all checks before Ray; `experiments/run_twins.sh` runs them."""

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from recipe.online_refiner import config, main

CONFIG = Path(str(config.__file__)).parent
PRESETS = sorted({path.stem for path in (CONFIG / "experiment").glob("*.yaml")} - {"geo3k_grpo"})  # it has images
OFTEN = {"apps_dapo", "gsm8k_grpo"}
TWINS = {"gsm8k_grpo": "math", "math_dapo": "math", "reasoning_gym": "puzzles"}  # others: cpu
SOURCES = {
    "math": ["gsm8k", "--generated", "50"],
    "puzzles": ["reasoning-gym", "--tasks", "chain_sum", "--number", "50"],
}
REPOSITORY = CONFIG.parents[2]


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("online_refiner", overrides=list(overrides))


@pytest.fixture(scope="module")
def data_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a twin's data, once."""

    @functools.cache
    def prepare(twin: str) -> Path:
        folder = tmp_path_factory.mktemp(twin)
        command = [sys.executable, "-m", "recipe.commands", "prepare", *SOURCES[twin], "--output", str(folder)]
        subprocess.run(command, check=True, cwd=REPOSITORY, capture_output=True)
        return folder

    return prepare


@pytest.mark.e2e
@pytest.mark.parametrize(
    "preset", [preset if preset in OFTEN else pytest.param(preset, marks=pytest.mark.slow) for preset in PRESETS]
)
def test_every_twin_passes_the_checks(preset: str, tiny_llama: Path, data_of: Callable[[str], Path]) -> None:
    twin = TWINS.get(preset, "cpu_megatron" if preset.endswith("_megatron") else "cpu")
    if twin == "puzzles":
        pytest.importorskip("reasoning_gym", reason="the optional package reasoning-gym is not installed")
    problems = [f"data.{name}_files={data_of(twin)}/{name}.parquet" for name in ("train", "val") if twin in SOURCES]
    config = composed(
        f"experiment={preset}",
        f"twin={twin}",
        *(f"{model}={tiny_llama}" for model in ("actor_rollout_ref.model.path", "reward.reward_model.model_path")),
        *problems,
        "data.filter_overlong_prompts=false",  # the tiny model has a token for each letter,
        "data.truncation=left",  # so a twin's prompts are longer than with its own model
    )
    plan = main.prepare(config)
    assert "steps          2" in plan
    assert f"mode {composed(f'experiment={preset}').constraint.mode}" in plan
