"""What verl's trainers ask of a refiner, and of the rest of the config."""

from omegaconf import OmegaConf

from recipe.online_refiner.rules.run import Run

TRAINER_MODES = ("sync", "colocate_async", "separate_async")
"""Trainers of verl that the refine stage extends."""
MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
STREAMING_MANAGER = "recipe.online_refiner.streaming.StreamingAgentLoopManager"


def _is_separate(run: Run) -> bool:
    return run.config.trainer.v1.trainer_mode == "separate_async"


def agent_loops_have_one_manager(run: Run) -> str | None:
    """Streaming replaces verl's manager of agent loops, and nothing else does."""
    manager = OmegaConf.select(run.config, MANAGER_KEY)
    if not run.blocks.streams or manager in (None, STREAMING_MANAGER):
        return None
    return f"{MANAGER_KEY}={manager} and streaming both replace verl's agent loop manager; set refiner.streaming=false"


def trainer_is_extended(run: Run) -> str | None:
    """The trainer is one of verl's that the refine stage extends."""
    trainer = run.config.trainer
    if not trainer.use_v1:
        return "the online refiner extends verl's V1 trainers; set trainer.use_v1=true"
    if trainer.v1.trainer_mode in TRAINER_MODES:
        return None
    return (
        f"trainer.v1.trainer_mode={trainer.v1.trainer_mode}: the online refiner has not been tried with it; set one "
        f"of: {', '.join(TRAINER_MODES)}"
    )


def shared_servers_are_not_interrupted(run: Run) -> str | None:
    """Servers that refine as well are not interrupted in the middle."""
    mode = run.config.trainer.v1.trainer_mode
    if mode == "sync" or not run.blocks.streams or not run.blocks.is_shared:
        return None
    return (
        f"trainer.v1.trainer_mode={mode} interrupts its rollout servers in every step, and with them what they refine; "
        "set refiner.placement to colocated or dedicated, or trainer.v1.trainer_mode=sync"
    )


def separate_refiner_has_gpus(run: Run) -> str | None:
    """In ``separate_async`` no GPU is ever left to a refiner that waits for its turn."""
    blocks = run.blocks
    if not _is_separate(run) or not blocks.hosts_refiner or blocks.refiner.is_dedicated:
        return None
    return (
        f"trainer.v1.trainer_mode=separate_async with refiner.placement={blocks.refiner.placement}: neither its "
        "rollout nor its actor ever leaves its GPUs to a refiner; set refiner.placement=dedicated and "
        "refiner.n_gpus_per_node"
    )


def separate_refiner_streams(run: Run) -> str | None:
    """In ``separate_async`` the actor does not wait for refinements."""
    if not _is_separate(run) or not run.blocks.refines or run.blocks.streams:
        return None
    return (
        "trainer.v1.trainer_mode=separate_async with refiner.streaming=false: the actor would wait for every "
        "refinement; leave refiner.streaming null"
    )


def separate_rollout_gets_the_policy(run: Run) -> str | None:
    """What verl sends to servers of their own is the policy, and what it puts aside is not changed meanwhile."""
    if not _is_separate(run):
        return None
    model, actor = run.config.actor_rollout_ref.model, run.config.actor_rollout_ref.actor
    where = "trainer.v1.trainer_mode=separate_async with"
    has_adapter = model.lora_rank > 0 or OmegaConf.select(model, "lora.rank", default=0) > 0
    if has_adapter and not OmegaConf.select(model, "lora.merge"):
        return (
            f"{where} an adapter that is not merged: verl would send its base alone to the rollout's servers; set "
            "actor_rollout_ref.model.lora.merge=true"
        )
    if actor.strategy == "megatron":
        return f"{where} Megatron has not been tried; set model_engine=dp, or trainer.v1.trainer_mode=colocate_async"
    num_parts = run.config.trainer.v1.separate_async.parameter_sync_step
    if num_parts > 1 and run.config.trainer.device != "cpu" and actor.fsdp_config.param_offload:
        return (
            f"{where} actor_rollout_ref.actor.fsdp_config.param_offload=true: verl's copy of offloaded weights is no "
            "copy, and updates between two syncs would be lost; set it to false"
        )
    if run.config.reward.reward_model.enable and not run.config.reward.reward_model.enable_resource_pool:
        return (
            f"{where} a colocated reward model, which has no turn of its own; set "
            "reward.reward_model.enable_resource_pool=true"
        )
    return None


def separate_trainer_has_what_verl_asserts(run: Run) -> str | None:
    """What verl's ``separate_async`` asserts after Ray's start."""
    if not _is_separate(run):
        return None
    config, num_parts = run.config, run.config.trainer.v1.separate_async.parameter_sync_step
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    batch_size = num_parts * actor.ppo_mini_batch_size
    why = {
        f"data.train_batch_size={batch_size} (trainer.v1.separate_async.parameter_sync_step times "
        "actor_rollout_ref.actor.ppo_mini_batch_size)": config.data.train_batch_size == batch_size,
        "actor_rollout_ref.rollout.nnodes and n_gpus_per_node to the rollout's own GPUs": rollout.nnodes > 0
        and rollout.n_gpus_per_node > 0,
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl (with platform=cpu: sockets)": (
            rollout.checkpoint_engine.backend != "naive"
        ),
    }
    if actor.strategy == "fsdp2" and num_parts > 1:
        is_sharded = bool(actor.fsdp_config.reshard_after_forward)
        why["actor_rollout_ref.actor.fsdp_config.reshard_after_forward=true (verl puts shards aside)"] = is_sharded
    missing = [what for what, holds in why.items() if not holds]
    return f"trainer.v1.trainer_mode=separate_async: set {'; '.join(missing)}" if missing else None
