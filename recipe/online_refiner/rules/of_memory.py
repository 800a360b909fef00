"""What cannot fit into the memory that there is. Only what is sure refuses: estimates stand in the plan's table."""

from recipe.online_refiner.rules.run import Run
from recipe.online_refiner.sizing.moments import GIB, Footprint, Moment, Server


def _footprint(run: Run) -> Footprint:
    return run.plan.footprint(run.config, run.blocks)


def policy_reads_prompt_and_response(run: Run) -> str | None:
    """The policy's model reads as much as its engine is told, and a prompt with its response."""
    shape, rollout, data = run.plan.policy_shape, run.config.actor_rollout_ref.rollout, run.config.data
    if shape is None or not shape.max_positions:
        return None
    told, positions = rollout.max_model_len, shape.max_positions
    if told is not None and told > positions:
        return f"actor_rollout_ref.rollout.max_model_len={told} is more than the model reads, {positions}; lower it"
    longest = data.max_prompt_length + data.max_response_length
    if longest <= positions:
        return None
    return (
        f"data.max_prompt_length + data.max_response_length = {longest} is more than the model reads, {positions} "
        "tokens; lower data.max_response_length, or set actor_rollout_ref.model.override_config.max_position_embeddings"
    )


def engines_hold_their_weights(run: Run) -> str | None:
    """An engine's weights fit into its share of a GPU."""
    for one, share in _shares(run):
        if one.weights >= share:
            return (
                f"the {one.name}'s weights take {one.weights / GIB:.1f} GiB a GPU, its share is {share / GIB:.1f} GiB "
                f"({one.key}.gpu_memory_utilization={one.share}); raise "
                f"{one.key}.tensor_model_parallel_size or the share"
            )
    return None


def engines_hold_one_request(run: Run) -> str | None:
    """An engine's KV cache holds one request at its longest."""
    for one, share in _shares(run):
        num_tokens = (share - one.weights) / one.kv_token
        if num_tokens < one.max_model_len:
            key = "refiner.max_model_len" if one.name == "refiner" else f"{one.key}.max_model_len"
            return (
                f"{key}: the {one.name}'s KV cache holds {num_tokens:.0f} tokens at most beside its weights, one "
                f"request may have {one.max_model_len}; lower it, or raise {one.key}.gpu_memory_utilization or "
                f"{one.key}.tensor_model_parallel_size"
            )
    return None


def _shares(run: Run) -> list[tuple[Server, float]]:
    """Return the engines whose sizes are sure, with the bytes that each takes of a GPU; none if that is not known."""
    found = _footprint(run)
    return [(one, one.share * found.gpu) for one in found.servers if one.is_sure] if found.gpu else []


def engines_awake_share_a_gpu(run: Run) -> str | None:
    """Engines that never sleep have no more than one GPU between them."""
    found = _footprint(run)
    awake = [one for one in found.servers if one.where == "training GPU" and not one.sleeps]
    total = sum(one.share for one in awake)
    if not found.gpu or len(awake) < 2 or total <= 1:
        return None
    return (
        f"the rollout's and the refiner's engines are awake at the same time and ask for {total:.2f} of a GPU; set "
        "actor_rollout_ref.rollout.free_cache_engine=true, or lower refiner.rollout.gpu_memory_utilization"
    )


def training_fits(run: Run) -> str | None:
    """Weights, gradients and Adam fit while the policy learns."""
    return _refusal(run, "training", "training the critic", "log-probs")


def rollout_fits_beside_training(run: Run) -> str | None:
    """What training leaves on a GPU fits beside the rollout's engine."""
    return _refusal(run, "rollout awake", "weight sync")


def refiner_fits_beside_training(run: Run) -> str | None:
    """What training leaves on a GPU fits beside the refiner's engine."""
    return _refusal(run, "refiner awake")


def nodes_hold_what_is_offloaded(run: Run) -> str | None:
    """What waits in host memory fits into a node's."""
    return _refusal(run, "host memory")


def _refusal(run: Run, *names: str) -> str | None:
    found = _footprint(run)
    for moment in found.moments:
        limit = found.limit(moment)
        if moment.name in names and limit is not None and moment.least > limit:
            return _sentence(moment, limit)
    return None


def _sentence(moment: Moment, limit: float) -> str:
    parts = sorted((part for part in moment.parts if part.is_sure), key=lambda part: -part.size)
    shown = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in parts)
    what = "node" if moment.where == "host" else moment.where
    keys = " or ".join(dict.fromkeys(part.key for part in parts[:2]))
    return f"{moment.name} needs {moment.least / GIB:.1f} GiB of a {what} with {limit / GIB:.0f} ({shown}); set {keys}"
