"""What the machine has to have."""

from omegaconf import DictConfig

from recipe.online_refiner.blocks import RefinementConfig
from recipe.online_refiner.rules.run import Run


def training_has_workers(run: Run) -> str | None:
    """There are workers to train on."""
    if run.config.trainer.n_gpus_per_node >= 1 and run.config.trainer.nnodes >= 1:
        return None
    return "trainer.n_gpus_per_node and trainer.nnodes: set at least 1"


def reward_model_has_nodes(run: Run) -> str | None:
    """A reward model with GPUs of its own has nodes."""
    model = run.config.reward.reward_model
    if not (model.enable and model.enable_resource_pool) or model.nnodes >= 1:
        return None
    return f"reward.reward_model.nnodes={model.nnodes}: set at least 1 for GPUs of its own"


def machine_has_the_workers(run: Run) -> str | None:
    """The machine has as many GPUs, or cores, as a node has workers."""
    num_workers, num_there = run.config.trainer.n_gpus_per_node, run.files.num_devices
    if num_there is None or num_workers <= num_there:
        return None
    what = "CPU cores" if run.config.trainer.device == "cpu" else "GPUs"
    return f"trainer.n_gpus_per_node={num_workers} workers, but this machine has {num_there} {what}; lower it" + (
        ", or set platform=cpu" if num_there == 0 else ""
    )


def machine_has_the_pools(run: Run) -> str | None:
    """The machine has GPUs for all that have some of their own."""
    if run.files.num_devices is None:
        return None
    pools = _gpus_by_pool(run.config, run.blocks)
    total, wanted = sum(pools.values()), ", ".join(f"{number} for {who}" for who, number in pools.items())
    num_there, what, way_out = run.files.num_devices, "GPUs", "start Ray on every node first"
    if run.config.trainer.device == "cpu":
        key = "ray_kwargs.ray_init.num_gpus"
        num_there = run.config.ray_kwargs.ray_init.get("num_gpus") or 0
        what, way_out = f"logical GPUs ({key})", f"set {key}={total}"
    if total <= num_there:
        return None
    return f"the run needs {total} GPUs ({wanted}), but this machine has {num_there} {what}; lower them, or {way_out}"


def _gpus_by_pool(config: DictConfig, blocks: RefinementConfig) -> dict[str, int]:
    pools = {"training": config.trainer.nnodes * config.trainer.n_gpus_per_node}
    if config.trainer.v1.trainer_mode == "separate_async":
        rollout = config.actor_rollout_ref.rollout
        pools["the rollout"] = rollout.nnodes * rollout.n_gpus_per_node
    if blocks.hosts_refiner and blocks.refiner.is_dedicated:
        pools["the refiner"] = blocks.refiner.nnodes * (blocks.refiner.n_gpus_per_node or 0)
    model = config.reward.reward_model
    if model.enable and model.enable_resource_pool:
        pools["the reward model"] = model.nnodes * model.n_gpus_per_node
    return pools
