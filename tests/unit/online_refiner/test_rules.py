"""Settings that would do nothing, or something else than they say, are refused; the same without the reason is not."""

import copy

import pytest
from composed_main import base, composed
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from recipe.online_refiner import schema

PENALTY, SFT, LAGRANGIAN = (f"constraint.mode={mode}" for mode in ("penalty", "sft", "lagrangian"))
RESCUE = ("constraint.rescue_dead_groups=true", SFT, "refiner.placement=dedicated", "refiner.n_gpus_per_node=1")
RESCUE += ("actor_rollout_ref.rollout.n=2",)
FILTER = "algorithm.filter_groups={enable: true, metric: reward}"
MEMBERS = (LAGRANGIAN, "constraint.credit=members")
MAXIMUM = "refiner.skip_reward_at_least=1.0"


@pytest.mark.parametrize(
    ("settings", "mistake", "message"),
    [
        ((LAGRANGIAN, "constraint.credit=silent"), PENALTY, "no loss in their place"),
        (MEMBERS, PENALTY, "credit=members with constraint.mode=penalty takes advantages away"),
        ((SFT,), "constraint.credit=divergence", "credit=divergence does nothing in constraint.mode=sft"),
        ((), "constraint.sft_normaliser=batch", "batch does nothing in constraint.mode=penalty; set it to"),
        ((SFT,), "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean", "would count as rows"),
        (MEMBERS, "algorithm.use_kl_in_reward=true", "set algorithm.use_kl_in_reward=false"),
        (MEMBERS, "algorithm.norm_adv_by_std_in_grpo=false", "and algorithm.norm_adv_by_std_in_grpo=true"),
        (RESCUE, "algorithm.adv_estimator=gae", "with a critic a group of equal rewards is not dead"),
        (RESCUE, "algorithm.adv_estimator=reinforce_plus_plus", "its baseline is not the group's"),
        (RESCUE, "algorithm.adv_estimator=remax", "its baseline is not the group's"),
        (RESCUE, "algorithm.adv_estimator=gdpo", "its baseline is not the group's"),
        (RESCUE, "algorithm.filter_groups={enable: true, metric: acc}", "set the metric to reward"),
        (RESCUE, "algorithm.use_kl_in_reward=true", "KL would be silenced as well"),
        (RESCUE, "actor_rollout_ref.rollout.n=1", "a group is of several; raise n"),
        ((*RESCUE, FILTER), "refiner.streaming=false", "leave refiner.streaming null"),
        ((MAXIMUM,), "refiner.skip_reward_at_least=.nan", "least=nan: Input should be a finite number"),
        ((), "constraint.eta=.inf", "constraint.eta=inf: Input should be a finite number"),
        ((MAXIMUM, "refiner.imitate_solved=true", SFT), "refiner.skip_reward_at_least=null", "is maximal"),
    ],
)
def test_what_one_setting_makes_wrong(settings: tuple[str, ...], mistake: str, message: str) -> None:
    schema.load(composed(*settings))
    with pytest.raises(ValueError) as error:
        schema.load(composed(*settings, mistake))
    assert message in str(error.value) and "\n" not in str(error.value)


SEPARATE = (
    *("trainer.v1.trainer_mode=separate_async", "refiner.placement=dedicated", "refiner.n_gpus_per_node=1"),
    *("data.train_batch_size=1024", "actor_rollout_ref.actor.ppo_mini_batch_size=256"),
    *("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=2"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
)
REWARD_MODEL = "reward.reward_model.enable=true"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("actor_rollout_ref.model.lora_rank=8", "set actor_rollout_ref.model.lora.merge=true"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=true", "updates between two syncs would be lost"),
        (REWARD_MODEL, "set reward.reward_model.enable_resource_pool=true"),
    ],
)
def test_what_servers_of_their_own_cannot_be_sent(mistake: str, message: str) -> None:
    schema.load(composed(*SEPARATE))
    with pytest.raises(ValueError) as error:
        schema.load(composed(*SEPARATE, mistake))
    assert message in str(error.value)


def test_servers_of_their_own_are_not_tried_with_megatron() -> None:
    config = copy.deepcopy(base("megatron"))
    OmegaConf.set_struct(config, False)
    config.merge_with_dotlist(list(SEPARATE))
    with pytest.raises(ValueError, match="separate_async with Megatron has not been tried"):
        schema.load(config)


def test_neighbours_of_a_preset_have_folders_of_their_own() -> None:
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        runs = [
            compose("online_refiner", overrides=["experiment=apps_dapo", f"neighbour={neighbour}"]).run_dir
            for neighbour in ("luffy_like", "own_solved", "sd_zero_like", "srpo_like")
        ]
        runs.append(compose("online_refiner", overrides=["experiment=apps_dapo"]).run_dir)
    assert len(set(runs)) == 5, runs
