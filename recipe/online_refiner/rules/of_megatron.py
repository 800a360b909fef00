"""What would end a run on Megatron minutes after its start."""

from recipe.online_refiner.blocks import CRITIC_ESTIMATORS
from recipe.online_refiner.megatron import layout, rows_multiple
from recipe.online_refiner.rules.run import Run


def _is_megatron(run: Run) -> bool:
    return "megatron" in run.config.actor_rollout_ref.actor


def platform_is_megatrons(run: Run) -> str | None:
    """The platform is made for the engine."""
    strategy = run.config.actor_rollout_ref.actor.strategy
    if not _is_megatron(run) or strategy == "megatron":
        return None
    return (
        f"model_engine=megatron, but actor_rollout_ref.actor.strategy={strategy}: set platform=cpu_megatron, or "
        "another model_engine"
    )


def optimizer_is_distributed(run: Run) -> str | None:
    """Weights are sent to the rollout from Megatron's distributed optimizer."""
    if not _is_megatron(run) or run.config.actor_rollout_ref.actor.megatron.use_distributed_optimizer:
        return None
    return (
        "actor_rollout_ref.actor.megatron.use_distributed_optimizer=false: verl could not send the weights to the "
        "rollout; set it to true"
    )


def distributed_optimizer_is_adam(run: Run) -> str | None:
    """Megatron's distributed optimizer is Adam."""
    if not _is_megatron(run):
        return None
    config = run.config
    critic = {"critic": config.critic} if config.algorithm.adv_estimator in CRITIC_ESTIMATORS else {}
    for name, role in {"actor_rollout_ref.actor": config.actor_rollout_ref.actor, **critic}.items():
        if role.optim.optimizer.lower() == "sgd" and role.megatron.use_distributed_optimizer:
            return f"{name}.optim.optimizer={role.optim.optimizer}: Megatron's distributed optimizer is Adam"
    return None


def adapters_have_a_bridge(run: Run) -> str | None:
    """Adapters need Megatron-Bridge."""
    model = run.config.actor_rollout_ref.model
    if not _is_megatron(run) or not run.config.actor_rollout_ref.actor.megatron.vanilla_mbridge:
        return None
    if model.lora_rank <= 0 and model.lora.get("rank", 0) <= 0:
        return None
    return (
        "actor_rollout_ref.model.lora.rank above 0 needs Megatron-Bridge: set "
        "actor_rollout_ref.actor.megatron.vanilla_mbridge=false (which the CPU platform does not have)"
    )


def stages_take_whole_groups(run: Run) -> str | None:
    """Interleaved stages take whole groups of micro-batches: of mini-batches, to which verl fills up a batch."""
    actor, rollout = run.config.actor_rollout_ref.actor, run.config.actor_rollout_ref.rollout
    if not _is_megatron(run) or (actor.megatron.get("virtual_pipeline_model_parallel_size") or 1) == 1:
        return None
    num_shares = layout(run.config)["data"]
    num_rows = actor.ppo_mini_batch_size * rollout.n // num_shares
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": None if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu,
        "rollout.log_prob_micro_batch_size_per_gpu": (
            None if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu
        ),
    }
    for name, of_micro_batch in sizes.items():
        multiple = rows_multiple(actor.megatron, of_micro_batch)
        if num_rows % multiple:
            return (
                f"actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size: a rank's {num_rows} rows of a "
                f"mini-batch (actor.ppo_mini_batch_size * rollout.n / {num_shares}) are no multiple of {multiple} "
                f"(actor_rollout_ref.{name} times the pipeline's stages); change one of them"
            )
    return None
