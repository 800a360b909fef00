"""Rules on the machine and the cluster that a run asks for."""

import importlib.metadata
import importlib.util
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from ray._private.utils import get_num_cpus, get_ray_address_file, read_ray_address

from recipe.own_names import hidden_in
from recipe.preflight.attention import FLASH, chosen_attention, trained_models
from recipe.preflight.rules import PlannedRun, is_elsewhere, rule

SECONDS_TO_ANSWER = 3
"""Seconds within which a Ray cluster takes a connection."""


@rule("machine")
def names_are_not_hidden(run: PlannedRun) -> str | None:
    """No module in the working folder hides a package of this project."""
    working_dir = OmegaConf.select(run.config, "ray_kwargs.ray_init.runtime_env.working_dir")
    path = run.config.reward.custom_reward_function.path or ""
    names = ["recipe", "refiner_worker", *(["reward"] if path.startswith("pkg://reward") else [])]
    return hidden_in([os.getcwd() if working_dir is None else working_dir], names)


@rule("machine")
def trl_has_what_verl_patches(run: PlannedRun) -> str | None:
    """Where TRL is installed, verl finds the class that it patches there for any model (``apply_monkey_patch``)."""
    if importlib.util.find_spec("trl") is None:
        return None
    for module in ("trl.experimental.ppo", "trl"):
        try:
            if hasattr(importlib.import_module(module), "AutoModelForCausalLMWithValueHead"):
                return None
        except ImportError:
            continue
    version = importlib.metadata.version("trl")
    return f"trl {version} is installed, with which verl cannot load any model: pip uninstall trl"


@rule("machine")
def sequences_are_shared_by_flash_attention(run: PlannedRun) -> str | None:
    """Where GPUs share a sequence, attention is flash attention."""
    config = run.config
    sizes = {
        "actor_rollout_ref.model": (
            "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
            "actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size",
        ),
        "critic.model": ("critic.fsdp.ulysses_sequence_parallel_size",),
    }
    for model_key, model in trained_models(config).items():
        if (chosen_attention(model) or FLASH).startswith("flash_attention"):
            continue
        for key in sizes[model_key]:
            if (OmegaConf.select(config, key) or 1) > 1:
                return (
                    f"{key}={OmegaConf.select(config, key)} needs flash-attn, and the attention is "
                    f"{chosen_attention(model)}: set it to 1, or install flash-attn (WITH_FLASH_ATTN=1 bash "
                    f"scripts/setup.sh) and leave {model_key}.override_config.attn_implementation out"
                )
    return None


@rule("machine")
def segments_expand_where_vllm_sees_it(run: PlannedRun) -> str | None:
    """Engines that sleep do not get torch's expandable segments on a CUDA device."""
    name, variables = "PYTORCH_ALLOC_CONF", "ray_kwargs.ray_init.runtime_env.env_vars"
    value = OmegaConf.select(run.config, f"{variables}.{name}") or os.environ.get(name, "")
    if run.config.trainer.device != "cuda" or "expandable_segments:true" not in value.replace(" ", "").lower():
        return None
    said = f"{name}={value}: vLLM's engines cannot sleep with this setting, and do not read this variable"
    return f"{said}; set PYTORCH_CUDA_ALLOC_CONF={value} instead"


@rule("machine")
def ray_cluster_answers(run: PlannedRun) -> str | None:
    """Somebody listens at the address of the Ray cluster that the run would join."""
    ray_init = run.config.ray_kwargs.ray_init
    file = Path(get_ray_address_file(ray_init.get("_temp_dir")))
    addresses = {
        "ray_kwargs.ray_init.address": ray_init.get("address"),
        "RAY_ADDRESS": os.environ.get("RAY_ADDRESS"),
        str(file): read_ray_address(ray_init.get("_temp_dir")),
    }
    where, address = next(((key, one) for key, one in addresses.items() if one), ("", ""))
    host, _, port = address.rpartition(":")
    if is_elsewhere(run.config) or not host or "/" in host or not port.isdigit():  # or "local", or a URL of Ray's
        return None
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER).close()
    except OSError as error:
        way_out = "run ray stop, or remove the file" if where == str(file) else "start the cluster, or leave this out"
        return f"{where}: nobody answers at {address}, the address of a Ray cluster ({error}); {way_out}"
    return None


@rule("machine")
def folders_can_be_written(run: PlannedRun) -> str | None:
    """The run's folders can be made and written to, where the run is meant for this machine."""
    if not run.config.trainer.default_local_dir:
        return "trainer.default_local_dir=null: verl looks there for a checkpoint; set a folder, such as checkpoints"
    if run.files.num_devices is None:
        return None
    of_verl = ("default_local_dir", "rollout_data_dir", "validation_data_dir")
    for key in ("run_dir", *(f"trainer.{name}" for name in of_verl), "records.path"):
        name = OmegaConf.select(run.config, key)
        if not name or "://" in name:
            continue
        try:
            there = next(parent for parent in (Path(name), *Path(name).absolute().parents) if parent.exists())
            with tempfile.TemporaryDirectory(dir=there):
                pass
        except OSError as error:
            return f"{key}={name} cannot be written: {error.strerror} ({error.filename}); set another folder"
    return None


@rule("machine")
def machine_has_the_workers(run: PlannedRun) -> str | None:
    """The machine has a GPU (or core) for each worker of a node."""
    num_workers, num_there = run.config.trainer.n_gpus_per_node, run.files.num_devices
    if num_there is None or num_workers <= num_there:
        return None
    what = "CPU cores" if run.config.trainer.device == "cpu" else "GPUs"
    return (
        f"trainer.n_gpus_per_node={num_workers}, but this machine has {num_there} {what}; "
        f"{f'set trainer.n_gpus_per_node={num_there}' if num_there else 'set platform=cpu'}, "
        "or in a dry run set sizing.gpu_memory_gib=80 to plan for another machine"
    )


@rule("machine")
def machine_has_the_pools(run: PlannedRun) -> str | None:
    """The machine has GPUs for all pools."""
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
    said = f"the run needs {total} GPUs ({wanted}), but this machine has {num_there} {what}"
    return f"{said}; lower these numbers, or {way_out}"


@rule("machine")
def machine_has_the_cpus(run: PlannedRun) -> str | None:
    """Ray has the CPUs that verl reserves."""
    queue = run.config.transfer_queue.backend
    if run.files.num_devices is None or queue.storage_backend != "SimpleStorage":
        return None
    num_units = queue.SimpleStorage.num_data_storage_units
    wanted = num_units + 1 + 3 * sum(_gpus_by_pool(run.config, run.blocks).values())
    num_there = run.config.ray_kwargs.ray_init.num_cpus or get_num_cpus()
    if wanted <= num_there:
        return None
    return (
        f"verl reserves {wanted} CPUs of Ray ({num_units} storage units, their controller, 3 for each GPU) and would "
        f"wait for ever, as there are {num_there}; lower transfer_queue.backend.SimpleStorage.num_data_storage_units, "
        f"or set ray_kwargs.ray_init.num_cpus={wanted}"
    )


def _gpus_by_pool(config: DictConfig, blocks: Any) -> dict[str, int]:
    pools = {"training": config.trainer.nnodes * config.trainer.n_gpus_per_node}
    if config.trainer.v1.trainer_mode == "separate_async":
        rollout = config.actor_rollout_ref.rollout
        pools["the rollout"] = rollout.nnodes * rollout.n_gpus_per_node
    if blocks.hosts_refiner and blocks.refiner.is_dedicated:
        pools["the refiner"] = blocks.refiner.nnodes * (blocks.refiner.n_gpus_per_node or 0)
    distillation = config.get("distillation")
    if distillation and distillation.enabled:
        pools["the teachers of distillation"] = distillation.nnodes * distillation.n_gpus_per_node
    model = config.reward.reward_model
    if model.enable_resource_pool:  # which verl makes for no model too
        pools["the reward model"] = model.nnodes * model.n_gpus_per_node
    return pools
