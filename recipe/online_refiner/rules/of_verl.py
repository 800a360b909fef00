"""What this extension asks of verl's keys."""

from typing import get_args

from omegaconf import OmegaConf

from recipe.online_refiner.blocks import CRITIC_ESTIMATORS, CRITIC_FREE_ESTIMATORS, NO_CREDIT, NO_PENALTY, Credit
from recipe.online_refiner.rules.run import Run
from refiner_worker.engines import ENGINES

MAX_GPU_MEMORY_UTILIZATION = 0.95
"""Share of a GPU's memory that engines which are awake at the same time may take together."""
GROUP_ESTIMATORS = ("grpo", "grpo_vectorized")
"""Those that a credit with GRPO's advantages may replace."""
NO_GROUP_ESTIMATORS = ("reinforce_plus_plus", "remax", "gdpo")
"""Whose baseline is not the group's reward: that of the whole batch, of a greedy response, or of several rewards."""
SEQUENCE_LOSSES = ("sapo", "geo_mean")
"""Policy losses of verl that average each response first, whatever ``loss_agg_mode`` says."""
ROW_LOSSES = ("geo_mean", "bypass_mode")
"""Policy losses of verl that count rows without tokens of the policy, or refuse a micro-batch of such rows."""


def penalty_has_a_meaning(run: Run) -> str | None:
    """The penalty has a meaning for the advantage estimator."""
    estimator, constraint = run.config.algorithm.adv_estimator, run.blocks.constraint
    known = CRITIC_ESTIMATORS + CRITIC_FREE_ESTIMATORS
    if not constraint.penalises or estimator in known:
        return None
    reason = NO_PENALTY.get(estimator, "what the penalty does to its advantages is not known")
    return (
        f"constraint.mode={constraint.mode} does not work with algorithm.adv_estimator={estimator}: {reason}; set "
        f"constraint.mode=sft, or one of: {', '.join(known)}"
    )


def credit_goes_with_a_critic(run: Run) -> str | None:
    """With a critic, a credit changes rewards."""
    estimator, credit = run.config.algorithm.adv_estimator, run.blocks.constraint.chosen("credit")
    if estimator not in CRITIC_ESTIMATORS or credit not in NO_CREDIT:
        return None
    names = ", ".join(name for name in get_args(Credit) if name not in NO_CREDIT)
    return (
        f"constraint.credit={credit} does not work with algorithm.adv_estimator={estimator}: {NO_CREDIT[credit]}; set "
        f"one of: {names}"
    )


def centred_credit_has_siblings(run: Run) -> str | None:
    """A centred credit has siblings to compare."""
    if run.blocks.constraint.chosen("credit") != "centred" or run.config.actor_rollout_ref.rollout.n > 1:
        return None
    return "constraint.credit=centred compares siblings; set actor_rollout_ref.rollout.n to 2 or more"


def members_have_advantages_of_groups(run: Run) -> str | None:
    """Refinements as members of the group have GRPO's advantages."""
    algorithm = run.config.algorithm
    estimator = algorithm.adv_estimator
    if run.blocks.constraint.chosen("credit") != "members":
        return None
    if algorithm.use_kl_in_reward or not algorithm.norm_adv_by_std_in_grpo:
        return (
            "constraint.credit=members normalises the task's rewards by the group's deviation; set "
            "algorithm.use_kl_in_reward=false and algorithm.norm_adv_by_std_in_grpo=true"
        )
    if estimator in GROUP_ESTIMATORS:
        return None
    return (
        f"constraint.credit=members has GRPO's advantages, not those of algorithm.adv_estimator={estimator}; set one "
        f"of: {', '.join(GROUP_ESTIMATORS)}"
    )


def loss_has_a_fixed_scale(run: Run) -> str | None:
    """No refinement scales the policy's loss."""
    actor, constraint = run.config.actor_rollout_ref.actor, run.blocks.constraint
    if constraint.imitates and actor.policy_loss.loss_mode in ROW_LOSSES:
        return (
            f"constraint.mode={constraint.mode} with actor_rollout_ref.actor.policy_loss.loss_mode="
            f"{actor.policy_loss.loss_mode}: refinements would count as rows of the policy's loss; set it to vanilla, "
            "or constraint.mode=penalty"
        )
    is_fixed = actor.loss_agg_mode != "seq-mean-token-sum-norm" or actor.loss_scale_factor is not None
    if is_fixed or not constraint.imitates:
        return None
    return (
        f"constraint.mode={constraint.mode} with actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm: the "
        "longest row, which may be a refinement, would scale the policy loss; set "
        "actor_rollout_ref.actor.loss_scale_factor"
    )


def both_terms_are_one_gradient(run: Run) -> str | None:
    """Both terms of ``lagrangian`` are divided alike."""
    actor = run.config.actor_rollout_ref.actor
    by_length = actor.loss_agg_mode == "seq-mean-token-mean" or actor.policy_loss.loss_mode in SEQUENCE_LOSSES
    if run.blocks.constraint.mode != "lagrangian" or not by_length:
        return None
    return (
        "constraint.mode=lagrangian: the policy's loss is divided by the length of a, the cross-entropy by that of a', "
        "so that they are no gradient of one objective; set actor_rollout_ref.actor.loss_agg_mode=token-mean and "
        "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
    )


def refinements_fit_into_micro_batches(run: Run) -> str | None:
    """A prompt with its refinement fits into a dynamic micro-batch."""
    if not run.blocks.refines:
        return None
    config, refiner = run.config, run.blocks.refiner
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {}
    if actor.use_dynamic_bsz and run.blocks.constraint.imitates:
        budgets["actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    if rollout.log_prob_use_dynamic_bsz:
        budgets["rollout.log_prob_max_token_len_per_gpu"] = rollout.log_prob_max_token_len_per_gpu
    num_shares = 1  # GPUs that share a sequence
    if actor.strategy == "megatron":
        num_shares = actor.megatron.context_parallel_size
    elif actor.strategy in ("fsdp", "fsdp2"):
        num_shares = actor.fsdp_config.ulysses_sequence_parallel_size
    # A session with a refined last turn is at most as long as the longest response.
    length = config.data.max_prompt_length + max(refiner.response_length, rollout.response_length)
    for key, budget in budgets.items():
        if budget * num_shares < length:
            return (
                f"actor_rollout_ref.{key}={budget} is less than a prompt with its refinement "
                f"(data.max_prompt_length + refiner.response_length or data.max_response_length = {length}); raise it"
            )
    return None


def engines_share_memory(run: Run) -> str | None:
    """A colocated reward model is awake beside the refiner, whose answers it scores as they come."""
    config, refiner = run.config, run.blocks.refiner
    model = config.reward.reward_model
    is_beside = model.enable and not model.enable_resource_pool and refiner.placement == "colocated"
    if not run.blocks.refines or not is_beside or config.trainer.device == "cpu":
        return None
    own = refiner.rollout.get("gpu_memory_utilization", config.actor_rollout_ref.rollout.gpu_memory_utilization)
    if own + model.rollout.gpu_memory_utilization <= MAX_GPU_MEMORY_UTILIZATION:
        return None
    return (
        f"refiner.rollout.gpu_memory_utilization={own} and reward.reward_model.rollout.gpu_memory_utilization="
        f"{model.rollout.gpu_memory_utilization} share the GPUs; lower their sum to {MAX_GPU_MEMORY_UTILIZATION}, or "
        "give the reward model GPUs of its own: set reward.reward_model.enable_resource_pool=true"
    )


def routes_are_recorded(run: Run) -> str | None:
    """Routers are not replayed: refinements have no recorded routes."""
    actor = run.config.actor_rollout_ref.actor
    routers = (OmegaConf.select(actor, f"{engine}.router_replay.mode") for engine in ("megatron", "veomni"))
    modes = (*routers, OmegaConf.select(actor, "router_replay.mode"))
    if not run.blocks.refines or all(mode in (None, "disabled") for mode in modes):
        return None
    return (
        "actor_rollout_ref.actor: router_replay has no recorded routes for refined responses; set its mode to "
        "disabled, or constraint.mode=none"
    )


def loss_is_the_policys(run: Run) -> str | None:
    """Neither distillation nor multi-token prediction has a loss of its own."""
    if run.blocks.refines and OmegaConf.select(run.config, "distillation.enabled"):
        return "distillation.enabled=true has a loss of its own; set it to false, or constraint.mode=none"
    if run.blocks.refines and OmegaConf.select(run.config, "actor_rollout_ref.model.mtp.enable"):
        return "actor_rollout_ref.model.mtp.enable=true: set it to false, or constraint.mode=none"
    return None


def uncertainty_is_known(run: Run) -> str | None:
    """A choice by uncertainty has the rollout's log-probs."""
    rollout, blocks = run.config.actor_rollout_ref.rollout, run.blocks
    if not blocks.refines or not blocks.refiner.needs_log_probs or rollout.calculate_log_probs:
        return None
    return (
        "refiner.block_choice=uncertainty reads the rollout's log-probs; set "
        "actor_rollout_ref.rollout.calculate_log_probs=true, or another refiner.block_choice"
    )


def rewards_are_there_when_streaming(run: Run) -> str | None:
    """Streaming scores refinements during the rollout."""
    model = run.config.reward.reward_model
    if not run.blocks.streams or not model.enable or model.enable_resource_pool:
        return None
    return (
        "a colocated reward model sleeps during the rollout, where refiner.placement=dedicated scores refinements; set "
        "refiner.streaming=false, or reward.reward_model.enable_resource_pool=true"
    )


def dead_groups_are_those_of_the_reward(run: Run) -> str | None:
    """Dead groups are those whose rewards are equal: for a critic there are none, and the filter looks at the same."""
    algorithm = run.config.algorithm
    if not run.blocks.constraint.rescue_dead_groups:
        return None
    if algorithm.adv_estimator in CRITIC_ESTIMATORS:
        return (
            f"constraint.rescue_dead_groups=true with algorithm.adv_estimator={algorithm.adv_estimator}: with a critic "
            "a group of equal rewards is not dead; set it to false"
        )
    if run.config.actor_rollout_ref.rollout.n == 1:
        return "constraint.rescue_dead_groups=true with actor_rollout_ref.rollout.n=1: a group is of several; raise n"
    if algorithm.adv_estimator in NO_GROUP_ESTIMATORS:
        return (
            f"constraint.rescue_dead_groups=true with algorithm.adv_estimator={algorithm.adv_estimator}: its "
            "baseline is not the group's, so equal rewards teach something; set it to false, or the estimator to grpo"
        )
    filters = algorithm.get("filter_groups")
    if filters and filters.enable and filters.metric != "reward":
        return (
            f"constraint.rescue_dead_groups=true with algorithm.filter_groups.metric={filters.metric}: a group is dead "
            "where its rewards are equal; set the metric to reward"
        )
    if algorithm.use_kl_in_reward:
        return (
            "constraint.rescue_dead_groups=true with algorithm.use_kl_in_reward=true: in a group of equal rewards the "
            "KL would be silenced as well; use actor_rollout_ref.actor.use_kl_loss=true, or set it to false"
        )
    return None


def rescue_comes_before_the_filter(run: Run) -> str | None:
    """What a dead group is kept for is there before DAPO's filter looks."""
    blocks, filters = run.blocks, OmegaConf.select(run.config, "algorithm.filter_groups.enable")
    if blocks.streams or not blocks.constraint.rescue_dead_groups or not filters:
        return None
    how = (
        "leave refiner.streaming null"
        if blocks.refiner.is_dedicated
        else "set refiner.placement to dedicated or shared"
    )
    return (
        "constraint.rescue_dead_groups=true with algorithm.filter_groups.enable=true: what a group is kept for has to "
        f"be there before the filter looks; {how}"
    )


def shared_servers_are_the_reference(run: Run) -> str | None:
    """A shared refiner's servers are pi_0 without their adapter."""
    blocks, actor = run.blocks, run.config.actor_rollout_ref
    if not blocks.is_shared or not (blocks.hosts_refiner or blocks.measures_kl_by_actor):
        return None
    why = {
        "actor_rollout_ref.model.lora_rank above 0": actor.model.lora_rank > 0,
        "actor_rollout_ref.model.lora_adapter_path=null": actor.model.lora_adapter_path is None,
        "actor_rollout_ref.model.lora.merge=false": not OmegaConf.select(actor, "model.lora.merge"),
        f"refiner.model_path={actor.model.path} (the actor's)": blocks.refiner.model_path == actor.model.path,
        "actor_rollout_ref.rollout.name=vllm": actor.rollout.name == "vllm",
        "actor_rollout_ref.rollout.disaggregation.enabled=false": not actor.rollout.disaggregation.enabled,
        "actor_rollout_ref.rollout.quantization=null": actor.rollout.quantization is None,
        "actor_rollout_ref.rollout.qat=null": not OmegaConf.select(actor, "rollout.qat.enable"),
    }
    missing = [what for what, holds in why.items() if not holds]
    names = ", ".join(missing)
    return f"refiner.placement=shared needs a LoRA policy on the reference model: set {names}" if missing else None


def refiner_has_an_engine(run: Run) -> str | None:
    """Replicas of the refiner run on an engine that is known, with drafts that it has."""
    blocks, rollout = run.blocks, run.config.actor_rollout_ref.rollout
    if blocks.is_shared or not blocks.hosts_refiner:
        return None
    engine = blocks.refiner.rollout.get("name") or OmegaConf.select(rollout, "name", throw_on_missing=False)
    if engine not in ENGINES:
        names = " or ".join(ENGINES)
        return f"the refiner's replicas run on {names}, not {engine}: set +refiner.rollout.name=vllm"
    if blocks.refiner.draft not in (None, *ENGINES[engine].drafts):
        return (
            f"refiner.draft={blocks.refiner.draft} is not for replicas on {engine}; set it to null, or "
            "+refiner.rollout.name=vllm"
        )
    return None


def kl_is_measured_at_the_rollouts_temperature(run: Run) -> str | None:
    """Replicas measure the KL to the reference at temperature 1."""
    temperature = run.config.actor_rollout_ref.rollout.temperature
    if not run.blocks.measures_kl or temperature == 1:
        return None
    return (
        f"actor_rollout_ref.rollout.temperature={temperature}, but the refiner's replicas measure the KL to the "
        "reference at 1: set measure.num_kl_rollouts=0, or the temperature to 1"
    )
