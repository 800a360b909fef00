"""Refusals of runs that cannot fit into memory. Only certain sizes refuse; estimates appear in the plan's table."""

from collections.abc import Iterator

from recipe.sizing.moments import GIB, Footprint


def refusals(found: Footprint) -> Iterator[str]:
    """Yield a line for each part of a run that cannot fit, with the key to set.

    The lines are about the engines that never sleep, together on one GPU; each engine's weights and the KV cache of its
    longest request, within the engine's share of a GPU; and the certain parts on a GPU at each moment of a step.
    """
    awake = [one.share for one in found.servers if one.where == "training GPU" and not one.sleeps]
    if found.gpu and len(awake) > 1 and sum(awake) > 1:
        yield (
            f"the rollout's and the refiner's engines are awake at the same time and ask for {sum(awake):.2f} of a "
            "GPU; set actor_rollout_ref.rollout.free_cache_engine=true, or lower refiner.rollout.gpu_memory_utilization"
        )
    for one in found.servers:
        if not one.is_sure or found.gpu is None:
            continue
        share = one.share * found.gpu
        num_tokens = (share - one.weights) / one.kv_token
        if one.weights >= share:
            yield (
                f"the {one.name}'s weights take {one.weights / GIB:.1f} GiB a GPU, its share is {share / GIB:.1f} GiB "
                f"({one.key}.gpu_memory_utilization={one.share}); raise its share or "
                f"{one.key}.tensor_model_parallel_size"
            )
        elif num_tokens < one.max_model_len:
            yield (
                f"{one.length_key}: the {one.name}'s KV cache holds {num_tokens:.0f} tokens at most beside its weights,"
                f" one request may have {one.max_model_len}; lower it, or raise {one.key}.gpu_memory_utilization or "
                f"{one.key}.tensor_model_parallel_size"
            )
    for moment in found.moments:
        limit = found.limit(moment)
        parts = sorted((part for part in moment.parts if part.is_sure), key=lambda part: -part.size)
        least = sum(part.size for part in parts)
        if limit is not None and least > limit:
            shown = ", ".join(f"{part.name} {part.size / GIB:.1f}" for part in parts)
            keys = " or ".join(dict.fromkeys(part.key for part in parts[:2]))
            what = f"{least / GIB:.1f} GiB of a {moment.where} with {limit / GIB:.0f}"
            yield f"{moment.name} needs {what} ({shown}); set {keys}"
