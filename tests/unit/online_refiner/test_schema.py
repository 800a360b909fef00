"""The blocks `refiner` and `constraint`: every mistake has one clear line, and every committed config composes."""

import copy
import re
from pathlib import Path
from typing import get_args

import pytest
from composed_main import base, composed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from recipe.online_refiner import blocks, schema


def test_defaults() -> None:
    loaded = schema.load(composed())
    assert loaded.refines and loaded.hosts_refiner
    assert loaded.refiner.model_path == "model"
    assert loaded.refiner.response_length == 512  # data.max_response_length
    assert (loaded.constraint.mode, loaded.constraint.eta) == ("penalty", 1e-3)


@pytest.mark.parametrize("engine", [None, "megatron"])
def test_the_main_config_composes(engine: str | None) -> None:
    config = base(engine)
    schema.load(config)
    assert OmegaConf.to_container(config, resolve=True)
    if engine:
        assert config.actor_rollout_ref.actor.strategy == "megatron"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+refiner.modle_path=x", "unknown key refiner.modle_path"),
        ("+constraint.eat=1", "unknown key constraint.eat"),
        ("~refiner.top_p", "missing key refiner.top_p"),
        ("+constraint.filter=false", "constraint.filter is called constraint.reward_gate now"),
        ("constraint.eta=-1", "constraint.eta=-1: Input should be greater than or equal to 0"),
        ("constraint.eta=much", "constraint.eta=much: Input should be a valid number"),
        ("constraint.margin=-0.1", "constraint.margin=-0.1"),
        ("constraint.mode=punish", "constraint.mode=punish: Input should be 'none', 'penalty', 'sft' or 'lagrangian'"),
        ("constraint.rescue_dead_groups=true", "cross-entropy of its refinements alone; set constraint.mode=sft"),
        ("constraint.credit=x", "constraint.credit=x: Input should be 'return_to_go', 'whole', "),
        ("constraint.sft_normaliser=x", "constraint.sft_normaliser=x: Input should be 'accepted' or 'batch', or null"),
        ("constraint.divergence_per=x", "constraint.divergence_per=x: Input should be 'token' or 'rollout'"),
        ("constraint.credit=centred", "compares siblings; set actor_rollout_ref.rollout.n to 2 or more"),
        ("refiner.placement=moon", "refiner.placement=moon: Input should be 'colocated', 'dedicated' or 'shared'"),
        ("refiner.placement=dedicated", "set how many GPUs of its own the refiner has"),
        ("refiner.n_gpus_per_node=2", "is for refiner.placement=dedicated; set that, or null"),
        ("refiner.streaming=true", "the refiner sleeps during rollout; set refiner.placement=dedicated"),
        ("refiner.num_replicas=0", "refiner.num_replicas=0"),
        ("refiner.response_length=0", "refiner.response_length=0"),
        ("refiner.temperature=-1", "refiner.temperature=-1"),
        ("refiner.top_p=0", "refiner.top_p=0"),
        ("refiner.max_refinements_per_group=-1", "_group=-1: Input should be greater than or equal to 0, or null"),
        ("refiner.imitate_solved=true", "refiner.imitate_solved=true: say which reward is maximal"),
        ("constraint.pair_weights=x", "constraint.pair_weights=x: Input should be 'failure_rate' or 'advantage', or"),
        ("constraint.pair_weights=failure_rate", "say which reward is no failure, set refiner.skip_reward_at_least"),
        ("constraint.pair_weights=advantage", "constraint.credit=return_to_go: the response would be charged by its"),
        ("refiner.group_choice=x", "refiner.group_choice=x: Input should be 'lowest' or 'random'"),
        ("refiner.block=word", "refiner.block=word: Input should be 'token', 'line', 'sentence' or"),
        (
            "refiner.block_choice=x",
            "refiner.block_choice=x: Input should be 'first_failure', 'refiner',",
        ),
        ("refiner.n=2", "refiner.n=2: more than 1 needs refiner.temperature"),
        ("refiner.draft=x", "refiner.draft=x: Input should be 'ngram' or 'suffix', or null"),
        ("refiner.num_draft_tokens=0", "refiner.num_draft_tokens=0: Input should be greater than or equal to 1"),
        ("refiner.max_requests_in_flight=0", "refiner.max_requests_in_flight=0: Input should be greater than or"),
        ("refiner.max_requests_in_flight=451", "_in_flight=451: Input should be less than or equal to 450"),
        ("actor_rollout_ref.rollout.name=trtllm", "run on vllm or sglang, not trtllm: set +refiner.rollout.name=vllm"),
        ("actor_rollout_ref.rollout.temperature=0.7", "set measure.num_kl_rollouts=0, or the temperature to 1"),
        ("+distillation.enabled=true", "distillation.enabled=true has a loss of its own"),
        ("refiner.on_replica_death=pray", "refiner.on_replica_death=pray: Input should be 'restart', 'continue' or"),
        ("refiner.request_timeout_s=0", "refiner.request_timeout_s=0"),
        ("refiner.restart_timeout_s=0", "refiner.restart_timeout_s=0"),
        ("refiner.context=[hints]", "refiner.context.0=hints: Input should be 'feedback', 'sibling' or 'solution'"),
        ("refiner.template=none", "refiner.template=none: no such file; set one of apps, apps_paper, dialogue"),
        ("constraint.alignment=x", "constraint.alignment=x: Input should be 'position' or 'diff'"),
        ("constraint.token_weights=x", "token_weights=x: Input should be 'uniform', 'edited', 'charged'"),
        ("constraint.eta_schedule=x", "constraint.eta_schedule=x: Input should be 'constant', 'linear'"),
        ("constraint.eta_schedule=adaptive", "constraint.eta_schedule=adaptive needs constraint.delta"),
        ("constraint.kept_weight=2", "constraint.kept_weight=2: Input should be less than or equal to 1"),
        ("actor_rollout_ref.model.mtp.enable=true", "mtp.enable=true: set it to false"),
        ("refiner.num_workers=0", "refiner.num_workers=0: Input should be greater than or equal to 1, or null"),
        ("records.max_rollouts_per_step=-1", "records.max_rollouts_per_step=-1: Input should be greater than"),
        ("records.path=s4://bucket/run", "records.path=s4://bucket/run: "),
        ("measure.cross_entropy_all_every=-1", "measure.cross_entropy_all_every=-1: Input should be greater than"),
        ("algorithm.adv_estimator=gdpo", "does not work with algorithm.adv_estimator=gdpo: it normalises several"),
        ("reward.reward_model.enable=true", "lower their sum to 0.95, or give the reward model GPUs of its own"),
        ("trainer.v1.trainer_mode=moon", "not been tried with it; set one of: sync, colocate_async, separate_async"),
        ("trainer.v1.trainer_mode=separate_async", "set refiner.placement=dedicated and refiner.n_gpus_per_node"),
        ("trainer.use_v1=false", "set trainer.use_v1=true"),
    ],
)
def test_mistakes_say_what_to_set(override: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        schema.load(composed(override))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_foreign_recipe_takes_the_config_group(tmp_path: Path) -> None:
    (tmp_path / "foreign.yaml").write_text(
        "hydra: {searchpath: [pkg://verl.trainer.config, pkg://recipe.online_refiner.config]}\n"
        "defaults: [ppo_trainer, {refinement: online}, _self_]\n"
        "constraint: {eta: 0.5}\n"
    )
    with initialize_config_dir(str(tmp_path), version_base=None):
        config = compose(
            "foreign", overrides=["actor_rollout_ref.model.path=model", "actor_rollout_ref.rollout.name=vllm"]
        )
    loaded = schema.load(config)
    assert (loaded.refiner.model_path, loaded.constraint.eta) == ("model", 0.5)
    assert config.run_dir.startswith("runs/")


def test_a_policy_on_another_engine_with_a_refiner_on_vllm() -> None:
    other = "actor_rollout_ref.rollout.name=trtllm"
    assert schema.load(composed(other, "refiner.rollout={name: vllm}")).hosts_refiner
    assert not schema.load(composed(other, "constraint.mode=none", "measure.num_kl_rollouts=0")).hosts_refiner


def test_a_choice_by_uncertainty_needs_the_rollouts_log_probs() -> None:
    uncertain = ("refiner.block=line", "refiner.block_choice=uncertainty")
    assert schema.load(composed(*uncertain)).refiner.needs_log_probs, "verl has them by default"
    without = "actor_rollout_ref.rollout.calculate_log_probs=false"
    with pytest.raises(ValueError, match=r"set actor_rollout_ref\.rollout\.calculate_log_probs=true, or another"):
        schema.load(composed(*uncertain, without))
    for harmless in (uncertain[:1], uncertain[1:], (*uncertain, "constraint.mode=none")):
        schema.load(composed(*harmless, without))


def test_another_temperature_without_the_kl() -> None:
    schema.load(composed("actor_rollout_ref.rollout.temperature=0.7", "measure.num_kl_rollouts=0"))


def test_routes_are_not_recorded_for_refinements() -> None:
    config = copy.deepcopy(base("megatron"))
    config.actor_rollout_ref.actor.megatron.router_replay.mode = "R3"
    with pytest.raises(ValueError, match="router_replay has no recorded routes"):
        schema.load(config)
    config.constraint.mode = "none"
    schema.load(config)


def test_agent_loops_of_several_turns_are_refined() -> None:
    rollout = "actor_rollout_ref.rollout"
    schema.load(composed(f"{rollout}.multi_turn.enable=true", f"{rollout}.agent.default_agent_loop=tool_agent"))


def test_a_shared_refiner_needs_a_lora_even_to_measure_the_kl() -> None:
    with pytest.raises(ValueError, match="refiner.placement=shared needs a LoRA policy"):
        schema.load(composed("refiner.placement=shared", "constraint.mode=none", "measure.num_kl_rollouts=8"))
    schema.load(composed("refiner.placement=shared", "constraint.mode=none"))


@pytest.mark.parametrize("setting", ["quantization=fp8", "qat={enable: true}", "disaggregation.enabled=true"])
def test_a_shared_refiner_needs_servers_that_are_plain(setting: str) -> None:
    shared = ("refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8")
    schema.load(composed(*shared))
    with pytest.raises(ValueError, match=f"set actor_rollout_ref.rollout.{setting.partition('=')[0].split('.')[0]}"):
        schema.load(composed(*shared, f"actor_rollout_ref.rollout.{setting}"))


def test_mode_none_hosts_a_refiner_only_if_asked_to_track_the_kl() -> None:
    assert not schema.load(composed("constraint.mode=none")).hosts_refiner
    tracked = ("constraint.mode=none", "measure.num_kl_rollouts=8")
    assert schema.load(composed(*tracked)).hosts_refiner
    assert not schema.load(composed(*tracked, "algorithm.use_kl_in_reward=true")).hosts_refiner


def test_the_kl_is_measured_on_64_responses_by_default() -> None:
    assert schema.load(composed()).num_kl_rollouts == 64
    assert schema.load(composed("measure.num_kl_rollouts=9999")).num_kl_rollouts == 9999


def test_other_modes_take_any_estimator() -> None:
    assert not schema.load(composed("constraint.mode=none", "algorithm.adv_estimator=gdpo")).refines
    assert schema.load(composed("constraint.mode=sft", "algorithm.adv_estimator=gdpo")).refines


@pytest.mark.parametrize("credit", ["centred", "divergence", "exonerate"])
def test_credits_that_change_advantages_do_not_work_with_a_critic(credit: str) -> None:
    overrides = (f"constraint.credit={credit}", "actor_rollout_ref.rollout.n=2")
    schema.load(composed(*overrides))
    with pytest.raises(ValueError, match=f"credit={credit} does not work .*; set one of: return_to_go, whole, in_rew"):
        schema.load(composed(*overrides, "algorithm.adv_estimator=gae"))


@pytest.mark.parametrize("setting", ["loss_agg_mode=seq-mean-token-mean", "policy_loss.loss_mode=sapo"])
def test_both_terms_of_a_gradient_are_divided_alike(setting: str) -> None:
    override = f"actor_rollout_ref.actor.{setting}"
    with pytest.raises(ValueError, match="set actor_rollout_ref.actor.loss_agg_mode=token-mean"):
        schema.load(composed("constraint.mode=lagrangian", override))
    schema.load(composed("constraint.mode=sft", "constraint.sft_normaliser=batch", override))


def test_what_a_mode_says_of_keys_that_are_null() -> None:
    chosen = schema.load(composed("constraint.mode=lagrangian", "constraint.credit=in_reward")).constraint
    keys = ("credit", "token_weights", "sft_normaliser")
    assert [chosen.chosen(key) for key in keys] == ["in_reward", "charged", "batch"]
    assert chosen.penalises and chosen.imitates
    chosen = schema.load(composed("constraint.mode=sft")).constraint
    assert [chosen.chosen(key) for key in keys] == [None, "uniform", "accepted"]
    assert schema.load(composed()).constraint.chosen("credit") == "return_to_go"


def test_every_estimator_of_verl_is_decided() -> None:
    from verl.trainer.ppo.core_algos import AdvantageEstimator

    decided = {*blocks.CRITIC_ESTIMATORS, *blocks.CRITIC_FREE_ESTIMATORS, *blocks.NO_PENALTY}
    assert decided == {estimator.value for estimator in AdvantageEstimator}


def test_choices_are_implemented() -> None:
    from recipe.online_refiner import alignment, credit, eta, loss

    assert tuple(alignment.ALIGNMENTS) == get_args(blocks.Alignment)
    assert tuple(loss.TOKEN_WEIGHTS) == get_args(blocks.TokenWeights)
    assert tuple(credit.CREDITS) == get_args(blocks.Credit)
    assert {name for name, one in credit.CREDITS.items() if one.rewards is None} == set(blocks.NO_CREDIT)
    assert tuple(blocks.OF_MODE) == get_args(blocks.Mode)
    assert tuple(eta.SCHEDULES) == get_args(blocks.EtaSchedule)


def test_sft_needs_a_fixed_scale_of_the_policy_loss() -> None:
    overrides = ("constraint.mode=sft", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm")
    with pytest.raises(ValueError, match="set actor_rollout_ref.actor.loss_scale_factor"):
        schema.load(composed(*overrides))
    schema.load(composed(*overrides, "actor_rollout_ref.actor.loss_scale_factor=512"))


@pytest.mark.parametrize(
    ("mode", "dynamic", "budget"),
    [
        ("penalty", "rollout.log_prob_use_dynamic_bsz", "rollout.log_prob_max_token_len_per_gpu"),
        ("sft", "actor.use_dynamic_bsz", "actor.ppo_max_token_len_per_gpu"),
    ],
)
def test_a_refinement_must_fit_into_a_dynamic_micro_batch(mode: str, dynamic: str, budget: str) -> None:
    overrides = (f"constraint.mode={mode}", f"actor_rollout_ref.{dynamic}=true", f"actor_rollout_ref.{budget}=1023")
    with pytest.raises(ValueError, match=f"{budget}=1023 is less than a prompt with its refinement"):
        schema.load(composed(*overrides))
    schema.load(composed(*overrides, f"actor_rollout_ref.{budget}=1024"))
    schema.load(composed(*overrides, "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2"))


@pytest.mark.parametrize(
    "overrides",
    [
        ("refiner.rollout.gpu_memory_utilization=0.4",),
        ("reward.reward_model.enable_resource_pool=true",),
        ("trainer.device=cpu",),
    ],
)
def test_a_reward_model_beside_a_refiner_that_leaves_it_room(overrides: tuple[str, ...]) -> None:
    schema.load(composed("reward.reward_model.enable=true", *overrides))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("reward.reward_model.enable=true", "set refiner.streaming=false, or reward.reward_model.enable_resource_pool"),
        ("actor_rollout_ref.rollout.agent.agent_loop_manager_class=my.Manager", "set refiner.streaming=false"),
    ],
)
def test_streaming_needs_rewards_and_workers_during_the_rollout(override: str, message: str) -> None:
    dedicated = ("refiner.placement=dedicated", "refiner.n_gpus_per_node=2")
    assert schema.load(composed(*dedicated)).streams
    assert not schema.load(composed(*dedicated, "constraint.mode=none", "measure.num_kl_rollouts=8")).streams
    with pytest.raises(ValueError, match=re.escape(message)):
        schema.load(composed(*dedicated, override))
    assert not schema.load(composed(*dedicated, override, "refiner.streaming=false")).streams
