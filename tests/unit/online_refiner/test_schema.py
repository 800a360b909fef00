"""The blocks `refiner` and `constraint`: every mistake has one clear line, and every committed config composes."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner import schema

CONFIG = Path(schema.__file__).parent / "config"
EXPERIMENTS = sorted(path.stem for path in (CONFIG / "experiment").glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("online_refiner", overrides=["actor_rollout_ref.model.path=model", *overrides])


def test_defaults() -> None:
    blocks = schema.load(composed())
    assert blocks.refines and blocks.hosts_refiner
    assert blocks.refiner.model_path == "model"
    assert blocks.refiner.max_new_tokens == 512  # data.max_response_length
    assert (blocks.constraint.mode, blocks.constraint.eta) == ("penalty", 1e-3)


@pytest.mark.parametrize("experiment", [None, *EXPERIMENTS])
@pytest.mark.parametrize("engine", [None, "megatron"])
def test_every_committed_config_composes(experiment: str | None, engine: str | None) -> None:
    overrides = [f"experiment={experiment}"] if experiment else []
    overrides += [f"model_engine={engine}"] if engine else []
    config = composed(*overrides)
    schema.load(config)
    assert OmegaConf.to_container(config, resolve=True)
    if engine and not experiment:
        assert config.actor_rollout_ref.actor.strategy == "megatron"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+refiner.modle_path=x", "unknown key refiner.modle_path"),
        ("+constraint.eat=1", "unknown key constraint.eat"),
        ("~refiner.top_p", "missing key refiner.top_p"),
        ("constraint.eta=-1", "constraint.eta=-1"),
        ("constraint.eta=much", "constraint: Value 'much'"),
        ("constraint.margin=-0.1", "constraint.margin=-0.1"),
        ("constraint.mode=punish", "constraint.mode=punish does not exist; set one of: none, penalty"),
        ("refiner.placement=moon", "refiner.placement=moon does not exist"),
        ("refiner.num_replicas=0", "refiner.num_replicas=0"),
        ("refiner.max_new_tokens=0", "refiner.max_new_tokens=0"),
        ("refiner.temperature=-1", "refiner.temperature=-1"),
        ("refiner.top_p=0", "refiner.top_p=0"),
        ("refiner.request_timeout_s=0", "refiner.request_timeout_s=0"),
        ("refiner.template=none", "refiner.template=none: no such file; set one of apps, dialogue, or a path"),
        ("algorithm.adv_estimator=gae", "needs a critic-free estimator, not algorithm.adv_estimator=gae"),
        ("reward.reward_model.enable=true", "set reward.reward_model.enable_resource_pool=true"),
        ("trainer.v1.trainer_mode=separate_async", "set trainer.v1.trainer_mode=sync"),
    ],
)
def test_mistakes_say_what_to_set(override: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        schema.load(composed(override))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_mode_none_hosts_a_refiner_only_to_track_the_kl() -> None:
    assert schema.load(composed("constraint.mode=none")).hosts_refiner
    assert not schema.load(composed("constraint.mode=none", "refiner.num_kl_rollouts=0")).hosts_refiner
    assert not schema.load(composed("constraint.mode=none", "algorithm.use_kl_in_reward=true")).hosts_refiner


def test_mode_none_takes_any_estimator() -> None:
    assert not schema.load(composed("constraint.mode=none", "algorithm.adv_estimator=gae")).refines
