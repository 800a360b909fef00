"""Keys of verl that verl would ignore, or read in another way than a user means."""

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.online_refiner.config.rules import ACTOR, MODEL, ROLLOUT
from recipe.preflight.rules import PlannedRun, has_critic, rule

FOLDERS = (
    "run_dir",
    *(f"trainer.{name}" for name in ("default_local_dir", "rollout_data_dir", "validation_data_dir")),
    "trainer.resume_from_path",
    "global_profiler.save_path",
)
"""The keys of folders that verl or this extension makes or reads by the operating system."""


@rule("paths")
def folders_are_local(run: PlannedRun) -> str | None:
    """No folder is a URL of an object store: a folder of that name would be made in the working directory."""
    for key in FOLDERS:
        name = OmegaConf.select(run.config, key)
        if name and "://" in str(name):
            return (
                f"{key}={name} is a URL, and a local folder is needed, such as runs/a; examples/cluster/upload.py "
                "copies checkpoints to an object store"
            )
    return None


@rule("config")
def shards_divide_the_gpus(run: PlannedRun) -> str | None:
    """FSDP's groups of ``fsdp_size`` GPUs are as large as each other."""
    num_gpus = run.config.trainer.nnodes * run.config.trainer.n_gpus_per_node
    keys = [f"{ACTOR}.fsdp_config.fsdp_size", "actor_rollout_ref.ref.fsdp_config.fsdp_size"]
    for key in [*keys, *(["critic.fsdp.fsdp_size"] if has_critic(run.config) else [])]:
        size = OmegaConf.select(run.config, key) or 0
        if 0 < size < num_gpus and num_gpus % size:
            return f"{key}={size} does not divide the {num_gpus} GPUs of the trainer; set a divisor, or -1 for all"
    return None


@rule("config")
def keys_do_what_they_say(run: PlannedRun) -> str | None:
    """No key of verl is silently without effect, or turned into another value."""
    actor, rollout = run.config.actor_rollout_ref.actor, run.config.actor_rollout_ref.rollout
    for key in ("trainer.project_name", "trainer.experiment_name"):
        if not isinstance(name := OmegaConf.select(run.config, key), str):
            return f"{key}={name!r} is no text, as Hydra reads numbers; quote it: {key}='\"NAME\"'"
    limits = (actor.clip_ratio_low, actor.clip_ratio_high)
    if None not in limits and actor.clip_ratio not in (0.2, *limits):  # verl's default: who sets the limits leaves it
        return (
            f"{ACTOR}.clip_ratio={actor.clip_ratio} is not read beside clip_ratio_low={limits[0]} and "
            f"clip_ratio_high={limits[1]}; set these"
        )
    if rollout.get("full_determinism") and rollout.n > 1:
        return (
            f"{ROLLOUT}.full_determinism=true gives all responses to a prompt one seed, so they are equal and teach "
            f"nothing; set it to false, or {ROLLOUT}.n=1"
        )
    return None


UNREAD = {
    f"{ACTOR}.grad_clip": (1.0, f"{ACTOR}.optim.clip_grad"),
    "critic.grad_clip": (1.0, "critic.optim.clip_grad"),
}
"""The keys that verl does not read, with their defaults and the keys that verl reads instead. A key is here if it would
change the training; keys for speed or memory alone are warned of (``verl_glue/preflight/cautions.py``)."""
MOVED = {
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.reward_kwargs": "+reward.reward_kwargs",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model": "reward.reward_model",
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
}
"""The places of verl's older reward keys in 0.9, a block after its keys (``migrate_legacy_reward_impl`` in
``verl/experimental/reward_loop/reward_loop.py``, which ``verl.trainer.main_ppo`` does not call)."""


@rule("config")
def keys_are_read(run: PlannedRun) -> str | None:
    """Rewards and clipping of gradients are set by the keys that verl 0.9 reads."""
    for block in ("custom_reward_function", "reward_model", "sandbox_fusion"):
        for key, value in _set_keys(run.config.get(block), block):
            old = next(one for one in MOVED if f"{key}.".startswith(f"{one}."))
            return f"{key}={value} is not read, so rewards would be others; set {MOVED[old]}{key[len(old) :]}={value}"
    for key, (default, instead) in UNREAD.items():
        if (value := OmegaConf.select(run.config, key, default=default)) != default:
            return f"{key}={value} is not read; set {instead}"
    return None


def _set_keys(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a block that are not null, with their values."""
    if isinstance(value, DictConfig):
        for name in map(str, value):
            yield from _set_keys(value[name], f"{key}.{name}")
    elif value is not None:
        yield key, value


LARGEST_RANK = 512
"""The largest rank of an adapter that vLLM serves (``MaxLoRARanks`` of its ``config/lora.py``)."""


@rule("config")
def adapter_can_be_served(run: PlannedRun) -> str | None:
    """The policy's adapter is one that vLLM serves."""
    model = run.config.actor_rollout_ref.model
    ranks = {f"{MODEL}.lora_rank": model.lora_rank, f"{MODEL}.lora.rank": OmegaConf.select(model, "lora.rank") or 0}
    if run.config.actor_rollout_ref.rollout.name != "vllm" or OmegaConf.select(model, "lora.merge"):
        return None
    for key, rank in ranks.items():
        if rank > LARGEST_RANK:
            return f"{key}={rank}: vLLM serves adapters up to a rank of {LARGEST_RANK}; lower it"
    return None
