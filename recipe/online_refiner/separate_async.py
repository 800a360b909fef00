"""What verl's trainer ``separate_async`` asks of a config. Needs neither torch nor verl."""

from omegaconf import DictConfig

from recipe.online_refiner.blocks import RefinementConfig


def check_separate_async(config: DictConfig, blocks: RefinementConfig) -> None:
    """Check that nothing waits for its turn on GPUs that are never free, and what verl would assert after Ray's start.

    Raises:
        ValueError: Naming the keys and what to set.
    """
    if blocks.hosts_refiner and not blocks.refiner.is_dedicated:
        raise ValueError(
            f"trainer.v1.trainer_mode=separate_async with refiner.placement={blocks.refiner.placement}: neither its "
            "rollout nor its actor ever leaves its GPUs to a refiner; set refiner.placement=dedicated and "
            "refiner.n_gpus_per_node"
        )
    if blocks.refines and not blocks.streams:
        raise ValueError(
            "trainer.v1.trainer_mode=separate_async with refiner.streaming=false: the actor would wait for every "
            "refinement; leave refiner.streaming null"
        )
    rollout, num_parts = config.actor_rollout_ref.rollout, config.trainer.v1.separate_async.parameter_sync_step
    batch_size = num_parts * config.actor_rollout_ref.actor.ppo_mini_batch_size
    why = {
        f"data.train_batch_size={batch_size} (trainer.v1.separate_async.parameter_sync_step times "
        "actor_rollout_ref.actor.ppo_mini_batch_size)": config.data.train_batch_size == batch_size,
        "actor_rollout_ref.rollout.nnodes and n_gpus_per_node to the rollout's own GPUs": rollout.nnodes > 0
        and rollout.n_gpus_per_node > 0,
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl (with platform=cpu: sockets)": (
            rollout.checkpoint_engine.backend != "naive"
        ),
    }
    if config.actor_rollout_ref.actor.strategy == "fsdp2" and num_parts > 1:
        is_sharded = bool(config.actor_rollout_ref.actor.fsdp_config.reshard_after_forward)
        why["actor_rollout_ref.actor.fsdp_config.reshard_after_forward=true (verl puts shards aside)"] = is_sharded
    missing = [what for what, holds in why.items() if not holds]
    if missing:
        raise ValueError(f"trainer.v1.trainer_mode=separate_async: set {'; '.join(missing)}")
