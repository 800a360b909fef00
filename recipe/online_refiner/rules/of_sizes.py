"""What the refiner's sizes ask of each other, once its model is known."""

from recipe.online_refiner.rules.run import Run


def refiner_reads_prompt_and_response(run: Run) -> str | None:
    """The refiner's context holds a prompt and a response, and its model can read it."""
    plan = run.plan
    if plan.least_model_len <= plan.max_model_len <= plan.max_positions:
        return None
    return (
        f"refiner.max_model_len={plan.max_model_len} must be between {plan.least_model_len} (prompt and response) and "
        f"{plan.max_positions} (what the reference model can read); leave it null to derive it"
    )


def shared_servers_read_it_too(run: Run) -> str | None:
    """Servers that are shared read the refiner's prompt as well."""
    own = run.config.actor_rollout_ref.rollout.max_model_len
    if run.blocks.refiner.placement != "shared" or not own or own >= run.plan.max_model_len:
        return None
    return (
        f"actor_rollout_ref.rollout.max_model_len={own} is less than a refiner prompt with its answer, "
        f"{run.plan.max_model_len} tokens; raise it: with refiner.placement=shared its servers refine as well"
    )


def heads_are_cut_evenly(run: Run) -> str | None:
    """Tensor-parallel ranks have equally many attention heads, as vLLM and Megatron ask."""
    actor, policy = run.config.actor_rollout_ref, run.plan.policy_shape
    cut = [("actor_rollout_ref.rollout", actor.rollout, policy)]
    if run.blocks.hosts_refiner:
        cut.append(("refiner.rollout", run.plan.refiner_rollout, run.plan.refiner_shape))
    if actor.actor.strategy == "megatron":
        cut.append(("actor_rollout_ref.actor.megatron", actor.actor.megatron, policy))
    for key, block, shape in cut:
        if shape is not None and shape.num_heads % block.tensor_model_parallel_size:
            return (
                f"{key}.tensor_model_parallel_size={block.tensor_model_parallel_size} does not divide the model's "
                f"{shape.num_heads} attention heads; set a divisor of them"
            )
    return None


def replicas_fit(run: Run) -> str | None:
    """The replicas fit on the GPUs of their placement."""
    wanted = run.blocks.refiner.num_replicas or 1
    if run.plan.refiner_gpus // run.plan.replica_size >= wanted:
        return None
    where = "GPUs of its own" if run.blocks.refiner.is_dedicated else "training GPUs"
    return (
        f"refiner.num_replicas={wanted} replicas of {run.plan.replica_size} GPUs do not fit on {run.plan.refiner_gpus} "
        f"{where}; lower refiner.num_replicas or refiner.rollout.tensor_model_parallel_size"
    )


def replicas_align_with_nodes(run: Run) -> str | None:
    """Replicas take equal parts of a node, or whole nodes, and leave none over: verl slices its pools so."""
    size, num_gpus = run.plan.replica_size, run.plan.refiner_gpus
    per_node = run.blocks.refiner.n_gpus_per_node or run.config.trainer.n_gpus_per_node
    if (per_node % size == 0 or size % per_node == 0) and num_gpus % size == 0:
        return None
    return (
        f"refiner replicas of {size} GPUs do not align with {num_gpus} GPUs on nodes of {per_node}; set "
        "refiner.rollout.tensor_model_parallel_size to a divisor or a multiple of the GPUs of a node"
    )
