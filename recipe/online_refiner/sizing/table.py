"""What ``dry_run=true`` prints under the plan: memory by moment, and seconds of a step at its longest."""

from typing import Any

from omegaconf import DictConfig

from recipe.online_refiner.blocks import RefinementConfig
from recipe.online_refiner.sizing import constants
from recipe.online_refiner.sizing.moments import GIB, Footprint, Moment
from recipe.online_refiner.sizing.scaling import TEMPLATE_TOKENS, Fleet, Workload, size


def memory_table(found: Footprint) -> str:
    """Return the moments, the worst first on each kind of GPU, and which key helps; nothing if none is known."""
    lines = []
    for where in dict.fromkeys(moment.where for moment in found.moments):
        moments = sorted((one for one in found.moments if one.where == where), key=lambda one: -one.size)
        limit = found.limit(moments[0])
        unit = f"memory of a {where}" if where != "host" else "memory of a node"
        lines.append(f"{unit}, GiB" + (f", of {limit / GIB:.0f}" if limit else ""))
        lines += [f"  {_line(moment)}" for moment in moments]
        lines.append(f"  worst: {moments[0].name}{_verdict(moments[0], limit)}")
    if found.gpu is not None:
        lines += [
            f"KV cache of the {one.name}: {max(0.0, one.share * found.gpu - one.weights) / one.kv_token:.0f} tokens a "
            f"GPU at most, {one.max_model_len} for one request at its longest"
            for one in found.servers
        ]
    return "\n".join(lines)


def _line(moment: Moment) -> str:
    parts = sorted(moment.parts, key=lambda part: -part.size)
    shown = ", ".join(f"{'' if part.is_sure else '~'}{part.name} {part.size / GIB:.1f}" for part in parts)
    return f"{moment.name:<20} {moment.size / GIB:6.1f}  {shown}"


def _verdict(moment: Moment, limit: float | None) -> str:
    if limit is None:
        return f"; {moment.key} makes it smaller"
    if moment.size <= limit:
        return f", {moment.size / limit:.0%} of what there is"
    return f", which may not fit (~ is an estimate): {moment.key} makes it smaller"


def seconds_line(config: DictConfig, blocks: RefinementConfig, plan: Any) -> str:
    """Return the seconds and tokens of a step in which every response is as long as it may be; by stage."""
    if plan.policy_shape is None or plan.refiner_shape is None:
        return ""
    rollout, data = config.actor_rollout_ref.rollout, config.data
    sizes = (rollout.tensor_model_parallel_size * rollout.pipeline_model_parallel_size, plan.replica_size)
    name = blocks.sizing.constants
    shapes = plan.policy_shape, plan.refiner_shape
    settings = {"sizes": sizes, "share": rollout.gpu_memory_utilization, "memory": plan.gpu_memory}
    try:
        known = constants.of_gpu(name, *shapes, **settings) if name in constants.GPUS else constants.read(name)
    except ValueError as error:
        if name not in constants.GPUS:
            raise
        return f"seconds of a step are not known: {error}"  # whether it is refused is for the rules, which know more
    cap = blocks.refiner.max_refinements_per_group
    work = Workload(
        num_prompts=data.train_batch_size,
        group_size=rollout.n,
        prompt=data.max_prompt_length,
        response=data.max_response_length,
        longest=data.max_response_length,
        sigma=0.0,
        refined=float(blocks.refines),
        cap=cap,
        actor_passes=(blocks.constraint.penalises, blocks.constraint.imitates),
    )
    is_async = config.trainer.v1.trainer_mode == "separate_async"
    fleet = Fleet(
        gpus=rollout.nnodes * rollout.n_gpus_per_node if is_async else plan.num_gpus,
        placement=blocks.refiner.placement,
        sizes=sizes,
        most=(rollout.max_num_seqs, min(rollout.max_num_seqs, blocks.refiner.max_requests_in_flight)),
        replicas=plan.num_replicas,
        is_async=is_async,
        warm_up=config.trainer.v1.separate_async.num_warmup_batches,
    )
    row = size(work, known, fleet)
    tokens = work.num_prompts * rollout.n * (data.max_prompt_length + data.max_response_length)
    num_refined = work.num_prompts * min(rollout.n, rollout.n if cap is None else cap) * blocks.refines
    train_s, score_s = (tokens / plan.num_gpus / rate for rate in (known.train_tokens_per_s, known.score_tokens_per_s))
    return (
        f"seconds of a step whose responses are all at their longest ({known.origin}): rollout {row.rollout_s:.0f}, "
        f"refining adds {row.exposed_s:.0f}, log-probs {score_s:.0f}, update {train_s:.0f}, both of refinements "
        f"{row.refined_s:.0f} (if all are accepted)\n"
        f"tokens: responses {work.num_prompts * rollout.n * data.max_response_length:,}, refinements "
        f"{num_refined * blocks.refiner.response_length:,} behind prompts of "
        f"{num_refined * (data.max_prompt_length + data.max_response_length + TEMPLATE_TOKENS):,}, update {tokens:,}; "
        "other lengths and fleets: scripts/size_fleet.py"
    )
