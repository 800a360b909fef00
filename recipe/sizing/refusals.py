"""What cannot fit into the memory that there is. Only what is sure refuses: estimates stand in the plan's table."""

from recipe.sizing.moments import GIB, Footprint


def refusal(found: Footprint) -> str | None:
    """Return one line for the user on the first thing that cannot fit, and which key to set; None if all fits."""
    return _engines_awake(found) or _engines_too_small(found) or _moments_too_large(found)


def _engines_awake(found: Footprint) -> str | None:
    """Engines that never sleep have no more than one GPU between them."""
    awake = [one for one in found.servers if one.where == "training GPU" and not one.sleeps]
    total = sum(one.share for one in awake)
    if not found.gpu or len(awake) < 2 or total <= 1:
        return None
    return (
        f"the rollout's and the refiner's engines are awake at the same time and ask for {total:.2f} of a GPU; set "
        "actor_rollout_ref.rollout.free_cache_engine=true, or lower refiner.rollout.gpu_memory_utilization"
    )


def _engines_too_small(found: Footprint) -> str | None:
    """An engine's share of a GPU holds its weights, and its KV cache one request at its longest."""
    for one in [server for server in found.servers if server.is_sure and found.gpu]:
        share = one.share * (found.gpu or 0.0)
        if one.weights >= share:
            return (
                f"the {one.name}'s weights take {one.weights / GIB:.1f} GiB a GPU, its share is {share / GIB:.1f} GiB "
                f"({one.key}.gpu_memory_utilization={one.share}); raise its share or "
                f"{one.key}.tensor_model_parallel_size"
            )
        num_tokens = (share - one.weights) / one.kv_token
        if num_tokens < one.max_model_len:
            key = "refiner.max_model_len" if one.name == "refiner" else f"{one.key}.max_model_len"
            return (
                f"{key}: the {one.name}'s KV cache holds {num_tokens:.0f} tokens at most beside its weights, one "
                f"request may have {one.max_model_len}; lower it, or raise {one.key}.gpu_memory_utilization or "
                f"{one.key}.tensor_model_parallel_size"
            )
    return None


def _moments_too_large(found: Footprint) -> str | None:
    """At every moment of a step, what is sure to be on a GPU or in host memory fits."""
    for moment in found.moments:
        limit = found.limit(moment)
        parts = sorted((part for part in moment.parts if part.is_sure), key=lambda part: -part.size)
        least = sum(part.size for part in parts)
        if limit is not None and least > limit:
            shown = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in parts)
            keys = " or ".join(dict.fromkeys(part.key for part in parts[:2]))
            what = f"{least / GIB:.1f} GiB of a {moment.where} with {limit / GIB:.0f}"
            return f"{moment.name} needs {what} ({shown}); set {keys}"
    return None
