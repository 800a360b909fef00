"""What the refine stage requires of verl's keys."""

from omegaconf import OmegaConf

from recipe.online_refiner.config.rules import ACTOR, MODEL, ROLLOUT
from recipe.online_refiner.config.rules.shares import num_shares
from recipe.preflight.rules import MANAGER_KEY, PlannedRun, rule

STREAMING_MANAGER = "recipe.online_refiner.verl_glue.streaming.StreamingAgentLoopManager"
"""The agent loop manager of verl that also refines, as verl's config names it."""


REPLAYED = {("megatron", "R3")}
"""Engines and modes of verl's router replay in which the rows of refinements choose their experts themselves."""
WHY_NOT_REPLAYED = {
    "megatron": "it replays the experts that the pass for the old log-probs chose, and refinements are not in that "
    f"pass; set it to R3 with {ROLLOUT}.enable_rollout_routing_replay=true, or to disabled",
    "veomni": "verl's router replay on VeOmni was not tried with refinements, which have no experts to replay; set it "
    "to disabled",
}


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
    """Multi-token prediction is off, and Megatron alone replays routes, those of the rollout (R3)."""
    if not run.blocks.refines:
        return None
    if OmegaConf.select(run.config, mtp := f"{MODEL}.mtp.enable"):
        return f"{mtp}=true has no part for refinements; set it to false, or constraint.mode=none"
    for engine in ("megatron", "veomni"):
        mode = OmegaConf.select(run.config, key := f"{ACTOR}.{engine}.router_replay.mode")
        if mode not in (None, "disabled") and (engine, mode) not in REPLAYED:
            return f"{key}={mode}: {WHY_NOT_REPLAYED[engine]}, or constraint.mode=none"
        if mode == "R3" and not OmegaConf.select(run.config, returned := f"{ROLLOUT}.enable_rollout_routing_replay"):
            return f"{key}=R3 replays experts that the rollout does not return; set {returned}=true"
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
