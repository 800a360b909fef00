"""What the trainer separate_async and servers on SGLang ask of a config."""

import re

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner import schema

SEPARATE = (
    *("trainer.v1.trainer_mode=separate_async", "refiner.placement=dedicated", "refiner.n_gpus_per_node=1"),
    *("data.train_batch_size=1024", "actor_rollout_ref.actor.ppo_mini_batch_size=256"),
    *("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=2"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=true",
)


def changed(config: DictConfig, *overrides: str) -> DictConfig:
    for override in overrides:
        key, _, value = override.partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
    return config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("refiner.streaming=false", "the actor would wait for every refinement; leave refiner.streaming null"),
        ("data.train_batch_size=512", "set data.train_batch_size=1024 (trainer.v1.separate_async.parameter_sync_step"),
        ("actor_rollout_ref.rollout.nnodes=0", "set actor_rollout_ref.rollout.nnodes and n_gpus_per_node"),
        ("actor_rollout_ref.rollout.checkpoint_engine.backend=naive", "backend=nccl (with platform=cpu: sockets)"),
    ],
)
def test_what_the_separate_trainer_needs(config: DictConfig, override: str, message: str) -> None:
    assert schema.load(changed(config, *SEPARATE)).streams
    with pytest.raises(ValueError, match=re.escape(message)):
        schema.load(changed(config, override))


def test_the_separate_trainer_without_a_refiner_needs_no_place_for_it(config: DictConfig) -> None:
    colocated = ("refiner.placement=colocated", "refiner.n_gpus_per_node=null")
    schema.load(changed(config, *SEPARATE, *colocated, "constraint.mode=none"))
    with pytest.raises(ValueError, match="set refiner.placement=dedicated"):
        schema.load(changed(config, "measure.num_kl_rollouts=8"))


def test_policy_and_refiner_on_sglang(config: DictConfig) -> None:
    assert schema.load(changed(config, "actor_rollout_ref.rollout.name=sglang")).hosts_refiner
    with pytest.raises(ValueError, match=r"draft=ngram is not for replicas on sglang; set it to null, or \+refiner"):
        schema.load(changed(config, "refiner.draft=ngram"))
    schema.load(changed(config, "refiner.rollout={name: vllm}"))
