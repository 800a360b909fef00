"""A config on the tiny model and a data file of four problems, which tests change and check."""

import json
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from recipe.online_refiner import config as package

CONFIG = Path(package.__file__).parent
GOOD = {"inputs": ["1\n"], "outputs": ["2\n"]}


@pytest.fixture(scope="session")
def write() -> Callable[[Path, list[Any]], Path]:
    """Return a function that writes problems as verl's parquet, and returns the file."""

    def write(path: Path, problems: list[Any]) -> Path:
        rows = [
            {
                "data_source": "mini_apps",
                "prompt": [{"role": "user", "content": "double it"}],
                "reward_model": {"style": "rule", "ground_truth": json.dumps(problem)},
                "extra_info": {"problem_id": f"p{index}", "index": index},
            }
            for index, problem in enumerate(problems)
        ]
        pandas.DataFrame(rows, columns=["data_source", "prompt", "reward_model", "extra_info"]).to_parquet(path)
        return path

    return write


@pytest.fixture(scope="session")
def pickled(tiny_llama: Path) -> bytes:
    """Compose the main config (a second); tests get copies."""
    overrides = [
        "platform=cpu",
        f"actor_rollout_ref.model.path={tiny_llama}",
        "data.train_batch_size=2",
        "data.max_prompt_length=64",
        "data.max_response_length=16",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
        "reward.custom_reward_function.path=pkg://reward.verl_reward",
    ]
    with initialize_config_dir(str(CONFIG), version_base=None):
        return pickle.dumps(compose("online_refiner", overrides=overrides))


@pytest.fixture
def config(pickled: bytes, write: Callable, tmp_path: Path) -> DictConfig:
    """Return the config with a data file of its own."""
    config: DictConfig = pickle.loads(pickled)
    config.data.train_files = config.data.val_files = str(write(tmp_path / "good.parquet", [GOOD] * 4))
    return config


@pytest.fixture
def loggers() -> Iterator[None]:
    """Give loggers back as they were: Hydra disables those that exist, and the command drops lines of some."""
    known = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    before = [(one.disabled, [*one.filters]) for one in known]
    yield
    for logger, (disabled, filters) in zip(known, before, strict=True):
        logger.disabled, logger.filters = disabled, filters
