"""What sizes require of each other, once the configs of the models are read."""

from recipe.online_refiner.config import megatron
from recipe.online_refiner.config.replicas import replica_size
from recipe.online_refiner.config.rules import ACTOR, MODEL, ROLLOUT
from recipe.online_refiner.config.rules.shares import num_shares
from recipe.preflight.rules import PlannedRun, has_critic, rule
from recipe.sizing.cuts import cuts
from recipe.sizing.refusals import refusals


@rule("sizes")
def policy_reads_prompt_and_response(run: PlannedRun) -> str | None:
    """The policy's context holds prompt and response, and what its engine is told."""
    shape, rollout, data = run.plan.policy_shape, run.config.actor_rollout_ref.rollout, run.config.data
    if shape is None or not shape.max_positions:
        return None
    longest, positions = data.max_prompt_length + data.max_response_length, shape.max_positions
    if longest <= (rollout.max_model_len or positions) <= positions:
        return None
    told = "" if rollout.max_model_len is None else f"{ROLLOUT}.max_model_len={rollout.max_model_len}: "
    return (
        f"{told}the policy's context must hold data.max_prompt_length + data.max_response_length = {longest} tokens, "
        f"and the model reads {positions}; lower data.max_response_length, leave max_model_len null, or set "
        f"{MODEL}.override_config.max_position_embeddings"
    )


@rule("sizes")
def refiner_reads_prompt_and_response(run: PlannedRun) -> str | None:
    """The refiner's context holds prompt and response, and its model can read it."""
    for one in run.plan.hosted if run.blocks.hosts_refiner else ():
        if not one.least_model_len <= one.max_model_len <= one.max_positions:
            return (
                f"{one.use.key}.max_model_len={one.max_model_len} must be between {one.least_model_len} (prompt and "
                f"response, or the template alone) and {one.max_positions} (what the reference model can read); leave "
                "it null to derive it"
            )
    return None


@rule("sizes")
def thought_leaves_room_for_an_answer(run: PlannedRun) -> str | None:
    """The longest prompt and the longest thought of the refiner do not fill its context."""
    plan = run.plan
    if not run.blocks.refines or not plan.prompt.thoughts:
        return None
    for hosted in plan.hosted:
        for source, one in hosted.use.settings.items():
            prompt, key = plan.prompts.get(source, plan.prompt), f"refiner.by_source.{source}" if source else "refiner"
            if prompt.max_tokens(run.config.data.max_prompt_length, 0) + one.longest_thought >= hosted.max_model_len:
                return (
                    f"a prompt and a thought of {one.longest_thought} tokens fill the refiner's context, "
                    f"{hosted.max_model_len}; set {key}.thought_length lower"
                )
    return None


@rule("sizes")
def shared_servers_read_it_too(run: PlannedRun) -> str | None:
    """Shared servers can read the refiner's prompt, and the actor what it scores in place for them."""
    if not run.blocks.is_shared:
        return None
    plan, actor, rollout = run.plan, run.config.actor_rollout_ref.actor, run.config.actor_rollout_ref.rollout
    if (rollout.max_model_len or plan.max_model_len) < plan.max_model_len:
        return (
            f"{ROLLOUT}.max_model_len={rollout.max_model_len} is less than a refiner prompt with its answer, "
            f"{plan.max_model_len} tokens; raise it: with refiner.placement=shared its servers refine as well"
        )
    budget = rollout.log_prob_max_token_len_per_gpu
    if not rollout.log_prob_use_dynamic_bsz or budget * num_shares(actor) >= plan.in_place_tokens:
        return None
    return (
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu={budget} is less than constraint.in_place_template and a response "
        f"after it, {plan.in_place_tokens} tokens; raise it"
    )


@rule("sizes")
def replicas_fit(run: PlannedRun) -> str | None:
    """The replicas of rollout and refiners fit on their GPUs, each in a part of a node or in whole nodes."""
    plan, tensor = run.plan, "rollout.tensor_model_parallel_size"
    rollout, trainer = run.config.actor_rollout_ref.rollout, run.config.trainer
    if trainer.v1.trainer_mode != "separate_async" and replica_size(rollout) > plan.num_gpus:
        return f"a replica of the rollout needs {replica_size(rollout)} GPUs; lower actor_rollout_ref.{tensor}"
    if run.blocks.refiner.placement == "external":
        return None
    return _wrong_with_replicas(run, tensor)


def _wrong_with_replicas(run: PlannedRun, tensor: str) -> str | None:
    """Return one line if the refiners' replicas do not fit on their GPUs, or one would span a part of another node."""
    hosted, num_gpus, refiner = run.plan.hosted, run.plan.refiner_gpus, run.blocks.refiner
    wanted = {one.use.key: max(1, one.num_replicas) * one.replica_size for one in hosted}
    if sum(wanted.values()) > num_gpus:
        parts = [f"{one.use.key}.num_replicas={max(1, one.num_replicas)} of {one.replica_size} GPUs" for one in hosted]
        said, key = f"{', '.join(parts)}: replicas do not fit on {num_gpus} GPUs", max(wanted, key=wanted.__getitem__)
        return f"{said}; lower {key}.num_replicas, or the GPUs of one (+{key}.{tensor}=1)"
    per_node = refiner.n_gpus_per_node or run.config.trainer.n_gpus_per_node
    num_idle = num_gpus - sum(wanted.values()) if refiner.num_replicas is None else 0
    for one in hosted:
        size, first = one.replica_size, [start % per_node for start in one.places]
        is_aligned = all(at + size <= per_node or at == size % per_node == 0 for at in first)
        if not is_aligned or (num_idle and one is run.plan.common):
            return (
                f"{one.use.key}: replicas of {size} GPUs do not align with {num_gpus} GPUs on nodes of {per_node}; set "
                f"+{one.use.key}.{tensor} to a divisor or a multiple of the GPUs of a node"
            )
    return None


@rule("sizes")
def models_can_be_shared(run: PlannedRun) -> str | None:
    """The GPUs that share a model have equal shares of its heads and layers (``recipe/sizing/cuts.py``)."""
    return next(filter(None, (one.refusal() for one in cuts(run.config, run.blocks, run.plan))), None)


@rule("sizes")
def micro_batches_are_filled(run: PlannedRun) -> str | None:
    """A rank's rows of a mini-batch are whole micro-batches, as verl's ``prepare_micro_batches`` asserts."""
    config, n = run.config, run.config.actor_rollout_ref.rollout.n
    blocks = {ACTOR: config.actor_rollout_ref.actor}
    if has_critic(config):
        blocks["critic"] = config.critic
    for key, block in blocks.items():
        size = 1 if block.use_dynamic_bsz else block.ppo_micro_batch_size_per_gpu or 1
        if blocks[ACTOR].strategy == "megatron":
            num_ranks, multiple = megatron.layout(config)["data"], size * megatron.micro_batch_group(block.megatron)
        else:
            num_ranks, multiple = max(1, run.plan.num_gpus // num_shares(block)), size
        num_rows, rest = divmod(block.ppo_mini_batch_size * n, num_ranks)
        if rest:
            return (
                f"{key}.ppo_mini_batch_size={block.ppo_mini_batch_size} times {ROLLOUT}.n={n} is no multiple of the "
                f"{num_ranks} ranks that share it; change one of them"
            )
        if num_rows % multiple:
            groups = f" (times {multiple // size} of Megatron's virtual pipeline stages)" if multiple > size else ""
            return (
                f"{key}.ppo_micro_batch_size_per_gpu={size}{groups} does not divide a rank's {num_rows} rows of a "
                f"mini-batch ({key}.ppo_mini_batch_size * {ROLLOUT}.n / {num_ranks}); set a divisor of them"
            )
    return None


@rule("sizes")
def memory_is_there(run: PlannedRun) -> str | None:
    """What is surely in memory at any moment of a step fits (``recipe/sizing/refusals.py``)."""
    return next(refusals(run.plan.footprint(run.config, run.blocks)), None)
