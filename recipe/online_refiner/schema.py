"""Reads the blocks of this extension and checks them across fields. Needs neither torch nor verl."""

from dataclasses import fields
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipe.online_refiner.blocks import (
    CREDITS,
    CRITIC_ESTIMATORS,
    CRITIC_FREE_ESTIMATORS,
    NO_CREDIT,
    NO_PENALTY,
    ConstraintConfig,
    RecordsConfig,
    RefinementConfig,
)
from recipe.online_refiner.megatron import check as check_megatron
from recipe.online_refiner.separate_async import check_separate_async
from refiner_worker.config import RefinerConfig
from refiner_worker.engines import ENGINES

TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""Trainers of verl that the refine stage extends."""

MAX_GPU_MEMORY_UTILIZATION = 0.95
"""Share of a GPU's memory that engines which are awake at the same time may take together."""

GROUP_ESTIMATORS = ("grpo", "grpo_vectorized")
"""Those that a credit with GRPO's advantages may replace."""

SEQUENCE_LOSSES = ("sapo", "geo_mean")
"""Policy losses of verl that average each response first, whatever ``loss_agg_mode`` says."""

MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
STREAMING_MANAGER = "recipe.online_refiner.streaming.StreamingAgentLoopManager"

Block = TypeVar("Block")


def load(config: DictConfig) -> RefinementConfig:
    """Read and check this extension's blocks of a composed config.

    Args:
        config: The whole config of a run, interpolations not yet resolved.

    Raises:
        ValueError: If a key is unknown, missing or of a wrong type, or values do not go together.
    """
    blocks = RefinementConfig(
        refiner=_read(config, "refiner", RefinerConfig),
        constraint=_read(config, "constraint", ConstraintConfig),
        records=_read(config, "records", RecordsConfig),
        has_reference_worker=bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss),
    )
    blocks.refiner.validate()
    blocks.constraint.validate()
    blocks.records.validate()
    _check_mode(config, blocks.constraint)
    _check_pairs(blocks.refiner, blocks.constraint)
    if blocks.refines:
        _check_token_budgets(config, blocks)
        _check_shared_memory(config, blocks.refiner)
        _check_untried(config)
        if blocks.refiner.needs_log_probs and not config.actor_rollout_ref.rollout.calculate_log_probs:
            raise ValueError(
                "refiner.block_choice=uncertainty reads the rollout's log-probs; set "
                "actor_rollout_ref.rollout.calculate_log_probs=true, or another refiner.block_choice"
            )
    if blocks.streams:
        _check_streaming(config)
    elif blocks.constraint.rescue_dead_groups and OmegaConf.select(config, "algorithm.filter_groups.enable"):
        raise ValueError(
            "constraint.rescue_dead_groups=true with algorithm.filter_groups.enable=true: what a group is kept for "
            "has to be there before the filter looks; set refiner.placement to dedicated or shared"
        )
    if blocks.is_shared and (blocks.hosts_refiner or blocks.measures_kl_by_actor):
        _check_shared_servers(config, blocks.refiner)
    elif blocks.hosts_refiner:
        _check_engine(config, blocks)
    _check_trainer(config, blocks)
    check_megatron(config)
    return blocks


def _check_pairs(refiner: RefinerConfig, constraint: ConstraintConfig) -> None:
    if refiner.imitate_solved and constraint.mode != "sft":
        raise ValueError(
            f"refiner.imitate_solved=true with constraint.mode={constraint.mode}: a solved response would be charged "
            "for itself; set constraint.mode=sft"
        )
    if constraint.pair_weights == "failure_rate" and refiner.skip_reward_at_least is None:
        raise ValueError(
            "constraint.pair_weights=failure_rate: say which reward is no failure, set refiner.skip_reward_at_least"
        )
    if constraint.pair_weights == "advantage" and constraint.chosen("credit") not in (None, "members"):
        raise ValueError(
            f"constraint.pair_weights=advantage with constraint.credit={constraint.chosen('credit')}: the response "
            "would be charged by its refinement's advantage, which may be negative; set constraint.credit=members, or "
            "constraint.mode=sft"
        )


def _check_trainer(config: DictConfig, blocks: RefinementConfig) -> None:
    mode = config.trainer.v1.trainer_mode
    if not config.trainer.use_v1:
        raise ValueError("the online refiner extends verl's V1 trainers; set trainer.use_v1=true")
    if mode not in TRAINER_MODES:
        raise ValueError(
            f"trainer.v1.trainer_mode={mode}: the online refiner has not been tried with it; set one of: "
            + ", ".join(TRAINER_MODES)
        )
    if mode == "separate_async":
        check_separate_async(config, blocks)
    if mode != "sync" and blocks.streams and blocks.is_shared:
        raise ValueError(
            f"trainer.v1.trainer_mode={mode} interrupts its rollout servers in every step, and with them what they "
            "refine; set refiner.placement to colocated or dedicated, or trainer.v1.trainer_mode=sync"
        )


def _check_mode(config: DictConfig, constraint: ConstraintConfig) -> None:
    estimator, actor, mode = config.algorithm.adv_estimator, config.actor_rollout_ref.actor, constraint.mode
    credit, agg_mode = constraint.chosen("credit"), actor.loss_agg_mode
    if credit and estimator not in CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS:
        reason = NO_PENALTY.get(estimator, "what the penalty does to its advantages is not known")
        raise ValueError(
            f"constraint.mode={mode} does not work with algorithm.adv_estimator={estimator}: {reason}; set "
            f"constraint.mode=sft, or one of: {', '.join(CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS)}"
        )
    if credit in NO_CREDIT and estimator in CRITIC_ESTIMATORS:
        raise ValueError(
            f"constraint.credit={credit} does not work with algorithm.adv_estimator={estimator}: {NO_CREDIT[credit]}; "
            f"set one of: {', '.join(name for name in CREDITS if name not in NO_CREDIT)}"
        )
    if credit == "centred" and config.actor_rollout_ref.rollout.n < 2:
        raise ValueError("constraint.credit=centred compares siblings; set actor_rollout_ref.rollout.n to 2 or more")
    if credit == "members" and estimator not in GROUP_ESTIMATORS:
        raise ValueError(
            f"constraint.credit=members has GRPO's advantages, not those of algorithm.adv_estimator={estimator}; set "
            f"one of: {', '.join(GROUP_ESTIMATORS)}"
        )
    if constraint.imitates and agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        raise ValueError(
            f"constraint.mode={mode} with actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm: the longest "
            "row, which may be a refinement, would scale the policy loss; set actor_rollout_ref.actor.loss_scale_factor"
        )
    if mode == "lagrangian" and (agg_mode == "seq-mean-token-mean" or actor.policy_loss.loss_mode in SEQUENCE_LOSSES):
        raise ValueError(
            "constraint.mode=lagrangian: the policy's loss is divided by the length of a, the cross-entropy by that of "
            "a', so that they are no gradient of one objective; set actor_rollout_ref.actor.loss_agg_mode=token-mean "
            "and actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
        )


def _check_engine(config: DictConfig, blocks: RefinementConfig) -> None:
    rollout = config.actor_rollout_ref.rollout
    engine = blocks.refiner.rollout.get("name") or OmegaConf.select(rollout, "name", throw_on_missing=False)
    if engine not in ENGINES:
        names = " or ".join(ENGINES)
        raise ValueError(f"the refiner's replicas run on {names}, not {engine}: set +refiner.rollout.name=vllm")
    if blocks.refiner.draft not in (None, *ENGINES[engine].drafts):
        raise ValueError(
            f"refiner.draft={blocks.refiner.draft} is not for replicas on {engine}; set it to null, or "
            "+refiner.rollout.name=vllm"
        )
    if blocks.measures_kl and rollout.temperature != 1:
        raise ValueError(
            f"actor_rollout_ref.rollout.temperature={rollout.temperature}, but the refiner's replicas measure the KL "
            "to the reference at 1: set refiner.num_kl_rollouts=0, or the temperature to 1"
        )


def _check_untried(config: DictConfig) -> None:
    """Parts of verl whose own fields a refined row does not have."""
    actor = config.actor_rollout_ref.actor
    routers = (OmegaConf.select(actor, f"{engine}.router_replay.mode") for engine in ("megatron", "veomni"))
    if any(mode not in (None, "disabled") for mode in (*routers, OmegaConf.select(actor, "router_replay.mode"))):
        raise ValueError(
            "actor_rollout_ref.actor: router_replay has no recorded routes for refined responses; set its mode to "
            "disabled, or constraint.mode=none"
        )
    if OmegaConf.select(config, "distillation.enabled"):
        raise ValueError("distillation.enabled=true has a loss of its own; set it to false, or constraint.mode=none")
    if OmegaConf.select(config, "actor_rollout_ref.model.mtp.enable"):
        raise ValueError("actor_rollout_ref.model.mtp.enable=true: set it to false, or constraint.mode=none")


def _check_token_budgets(config: DictConfig, blocks: RefinementConfig) -> None:
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {}
    if actor.use_dynamic_bsz and blocks.constraint.imitates:
        budgets["actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    if rollout.log_prob_use_dynamic_bsz:
        budgets["rollout.log_prob_max_token_len_per_gpu"] = rollout.log_prob_max_token_len_per_gpu
    if not budgets:
        return
    num_shares = 1  # GPUs that share a sequence
    if actor.strategy == "megatron":
        num_shares = actor.megatron.context_parallel_size
    elif actor.strategy in ("fsdp", "fsdp2"):
        num_shares = actor.fsdp_config.ulysses_sequence_parallel_size
    # A session with a refined last turn is at most as long as the longest response, a single turn as max_new_tokens.
    longest = max(blocks.refiner.max_new_tokens, rollout.response_length)
    length = config.data.max_prompt_length + longest
    for key, budget in budgets.items():
        if budget * num_shares < length:
            raise ValueError(
                f"actor_rollout_ref.{key}={budget} is less than a prompt with its refinement "
                f"(data.max_prompt_length + refiner.max_new_tokens or data.max_response_length = {length}); raise it"
            )


def _check_shared_memory(config: DictConfig, refiner: RefinerConfig) -> None:
    """A colocated reward model is awake beside the refiner, whose answers it scores as they come."""
    model = config.reward.reward_model
    on_gpus = refiner.placement == "colocated" and config.trainer.device != "cpu"
    if not (on_gpus and model.enable and not model.enable_resource_pool):
        return
    own = refiner.rollout.get("gpu_memory_utilization", config.actor_rollout_ref.rollout.gpu_memory_utilization)
    if own + model.rollout.gpu_memory_utilization > MAX_GPU_MEMORY_UTILIZATION:
        raise ValueError(
            f"refiner.rollout.gpu_memory_utilization={own} and reward.reward_model.rollout.gpu_memory_utilization="
            f"{model.rollout.gpu_memory_utilization} share the GPUs; lower their sum to "
            f"{MAX_GPU_MEMORY_UTILIZATION}, or give the reward model GPUs of its own: set "
            "reward.reward_model.enable_resource_pool=true"
        )


def _check_streaming(config: DictConfig) -> None:
    """Refinements are made and scored during the rollout, in verl's agent loop workers."""
    model, manager = config.reward.reward_model, OmegaConf.select(config, MANAGER_KEY)
    if model.enable and not model.enable_resource_pool:
        raise ValueError(
            "a colocated reward model sleeps during the rollout, where refiner.placement=dedicated scores refinements; "
            "set refiner.streaming=false, or reward.reward_model.enable_resource_pool=true"
        )
    if manager not in (None, STREAMING_MANAGER):
        raise ValueError(
            f"{MANAGER_KEY}={manager} and streaming both replace verl's agent loop manager; set refiner.streaming=false"
        )


def _check_shared_servers(config: DictConfig, refiner: RefinerConfig) -> None:
    """Without its adapter, the policy's server must be pi_0."""
    actor = config.actor_rollout_ref
    why = {
        "actor_rollout_ref.model.lora_rank above 0": actor.model.lora_rank > 0,
        "actor_rollout_ref.model.lora_adapter_path=null": actor.model.lora_adapter_path is None,
        "actor_rollout_ref.model.lora.merge=false": not OmegaConf.select(actor, "model.lora.merge"),
        f"refiner.model_path={actor.model.path} (the actor's)": refiner.model_path == actor.model.path,
        "actor_rollout_ref.rollout.name=vllm": actor.rollout.name == "vllm",
        "actor_rollout_ref.rollout.disaggregation.enabled=false": not actor.rollout.disaggregation.enabled,
        "actor_rollout_ref.rollout.quantization=null": actor.rollout.quantization is None,
        "actor_rollout_ref.rollout.qat=null": not OmegaConf.select(actor, "rollout.qat.enable"),
    }
    missing = [what for what, holds in why.items() if not holds]
    if missing:
        raise ValueError(
            f"refiner.placement=shared needs a LoRA policy on the reference model: set {', '.join(missing)}"
        )


def _read(config: DictConfig, name: str, block_type: type[Block]) -> Block:
    if name not in config:
        raise ValueError(f"the config has no block `{name}`; add `refinement: online` to its defaults list")
    block = config[name]
    known = {field.name for field in fields(block_type)}  # type: ignore[arg-type]
    unknown, missing = sorted(set(block) - known), sorted(known - set(block))
    if unknown or missing:
        what = f"unknown key {name}.{unknown[0]}" if unknown else f"missing key {name}.{missing[0]}"
        raise ValueError(f"{what}; the keys of this block are: {', '.join(sorted(known))}")
    try:
        values: Any = OmegaConf.merge(OmegaConf.structured(block_type), OmegaConf.to_container(block, resolve=True))
        return OmegaConf.to_object(values)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise ValueError(f"{name}: {str(error).splitlines()[0]}") from error
