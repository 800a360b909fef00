"""What the refine stage requires of verl's keys."""

from omegaconf import OmegaConf

from recipe.online_refiner.config.rules import ACTOR, MODEL, ROLLOUT
from recipe.online_refiner.config.rules.shares import num_shares
from recipe.preflight.rules import MANAGER_KEY, PlannedRun, rule

STREAMING_MANAGER = "recipe.online_refiner.verl_glue.streaming.StreamingAgentLoopManager"
"""The agent loop manager of verl that also refines, as verl's config names it."""


@rule("config")
def refinements_fit_into_micro_batches(run: PlannedRun) -> str | None:
    """A prompt with its refinement fits into a dynamic micro-batch."""
    if not run.blocks.refines:
        return None
    config, refiner = run.config, run.blocks.refiner
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    budgets = {}
    if actor.use_dynamic_bsz and run.blocks.constraint.imitation is not None:
        budgets["actor.ppo_max_token_len_per_gpu"] = actor.ppo_max_token_len_per_gpu
    if rollout.log_prob_use_dynamic_bsz:
        budgets["rollout.log_prob_max_token_len_per_gpu"] = rollout.log_prob_max_token_len_per_gpu
    # A session with a refined last turn is at most as long as the longest response.
    length = config.data.max_prompt_length + max(refiner.response_length, rollout.response_length)
    for key, budget in budgets.items():
        if budget * num_shares(actor) < length:
            return (
                f"actor_rollout_ref.{key}={budget} is less than a prompt with its refinement "
                f"(data.max_prompt_length + refiner.response_length or data.max_response_length = {length}); raise it"
            )
    return None


@rule("config")
def refined_rows_are_trained_as_others(run: PlannedRun) -> str | None:
    """Router replay and multi-token prediction are off: they have no part for refinements."""
    routers = [f"{ACTOR}.{name}router_replay.mode" for name in ("", "megatron.", "veomni.")]
    for key in (*routers, f"{MODEL}.mtp.enable"):
        value = OmegaConf.select(run.config, key)
        if run.blocks.refines and value not in (None, False, "disabled"):
            off = "disabled" if key in routers else "false"
            return f"{key}={value} has no part for refinements; set it to {off}, or constraint.mode=none"
    return None


@rule("config")
def reference_log_probs_are_at_temperature_1(run: PlannedRun) -> str | None:
    """Replicas give log-probs only at temperature 1, so what is compared with them is at 1."""
    temperature, blocks = run.config.actor_rollout_ref.rollout.temperature, run.blocks
    if temperature == 1 or not blocks.constraint.asks_log_probs or blocks.is_shared:
        return None
    return (
        f"{ROLLOUT}.temperature={temperature}, but the refiner's log-probs are at 1: set it to 1, or leave "
        "constraint.target out"
    )


@rule("config")
def agent_loops_have_one_manager(run: PlannedRun) -> str | None:
    """Only streaming replaces verl's agent loop manager."""
    manager = OmegaConf.select(run.config, MANAGER_KEY)
    if not run.blocks.streams or manager in (None, STREAMING_MANAGER):
        return None
    return f"{MANAGER_KEY}={manager} and streaming both replace verl's agent loop manager; set refiner.streaming=false"
