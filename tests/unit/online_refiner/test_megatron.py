"""What a run on Megatron is refused for, and how many rows interleaved pipeline stages want."""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner import schema
from recipe.online_refiner.megatron import layout, rows_multiple

CONFIG = Path(schema.__file__).parent / "config"
ACTOR = "actor_rollout_ref.actor"


@functools.cache
def base(platform: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG), version_base=None):
        sizes = [f"{ACTOR}.ppo_mini_batch_size=4", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"]
        sizes += ["actor_rollout_ref.rollout.n=2", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"]
        overrides = [platform, "actor_rollout_ref.model.path=model", "trainer.n_gpus_per_node=2", *sizes]
        return compose("online_refiner", overrides=overrides)


def load(changes: dict[str, Any], platform: str = "platform=cpu_megatron") -> None:
    config = copy.deepcopy(base(platform))
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    schema.load(config)


@pytest.mark.parametrize(
    ("changes", "what", "way_out"),
    [
        ({f"{ACTOR}.megatron.use_distributed_optimizer": False}, "could not send the weights", "set it to true"),
        ({f"{ACTOR}.optim.optimizer": "SGD"}, "actor_rollout_ref.actor.optim.optimizer=SGD", "is Adam"),
        ({"critic.optim.optimizer": "sgd", "algorithm.adv_estimator": "gae"}, "critic.optim.optimizer=sgd", "is Adam"),
        ({"actor_rollout_ref.model.lora.rank": 8}, "needs Megatron-Bridge", "vanilla_mbridge=false"),
    ],
)
def test_mistakes(changes: dict[str, Any], what: str, way_out: str) -> None:
    with pytest.raises(ValueError) as error:
        load(changes)
    assert what in str(error.value) and way_out in str(error.value) and "\n" not in str(error.value)


def test_an_engine_on_the_platform_of_another() -> None:
    load({})
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("online_refiner", overrides=["platform=cpu", "model_engine=megatron"])
    with pytest.raises(ValueError, match="set platform=cpu_megatron"):
        schema.load(config)
    load({"critic.optim.optimizer": "sgd"})  # no critic
    load({f"{ACTOR}.optim.optimizer": "SGD"}, platform="platform=cpu")


INTERLEAVED = {
    f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": 2,
}


@pytest.mark.parametrize(
    ("changes", "is_right"),
    [
        ({}, True),  # 8 rows of one rank: 2 groups of 2 micro-batches of 2 rows; 1 group of 2 of 4 for log-probs
        ({f"{ACTOR}.ppo_mini_batch_size": 3}, False),
        ({f"{ACTOR}.ppo_mini_batch_size": 6}, False),  # 12 rows, but log-probs take 8 at once
        ({f"{ACTOR}.ppo_mini_batch_size": 6, "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True}, True),
        ({"trainer.n_gpus_per_node": 4}, False),  # 4 rows on each of two ranks
        ({f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": 1, f"{ACTOR}.ppo_mini_batch_size": 3}, True),
    ],
)
def test_interleaved_stages_take_whole_groups_of_micro_batches(changes: dict[str, Any], is_right: bool) -> None:
    if is_right:
        load({**INTERLEAVED, **changes})
    else:
        with pytest.raises(ValueError, match="virtual_pipeline_model_parallel_size: a rank's"):
            load({**INTERLEAVED, **changes})


def test_the_layout_of_a_cluster() -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("online_refiner", overrides=["experiment=apps_dapo_megatron"])
    assert layout(config) == {"tensor": 8, "pipeline": 2, "context": 1, "data": 2}


def test_multiples_of_rows() -> None:
    plain = {"virtual_pipeline_model_parallel_size": None, "override_transformer_config": {}}
    interleaved = {**plain, "virtual_pipeline_model_parallel_size": 2, "pipeline_model_parallel_size": 4}
    own = {**interleaved, "override_transformer_config": {"microbatch_group_size_per_vp_stage": 6}}
    assert [rows_multiple(engine, 3) for engine in ({}, plain, interleaved, own)] == [3, 3, 12, 18]
    assert [rows_multiple(engine, None) for engine in ({}, plain, interleaved, own)] == [1, 1, 4, 6]
