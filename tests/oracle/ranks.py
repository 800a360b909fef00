"""The actor's real worker and engine, on one or two processes of this machine: what it computes for a batch."""

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import torch
import verl  # noqa: F401  (loads the CPU platform)
from batches import LEARNING_RATE, Batch
from hydra import compose, initialize_config_module
from models import sees
from omegaconf import DictConfig
from soft import ForwardKl
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.verl_glue.actor_engine import ActorEngine, takes_positions
from recipe.online_refiner.verl_glue.actor_worker import ActorWorker
from recipe.online_refiner.verl_glue.loss import ONLY_RESPONSES, PICTURES, jagged

ACTOR = "actor_rollout_ref.actor"
LARGE = 1e6  # Megatron's distributed optimizer is Adam, which without memory makes plain steps with such an epsilon
PLAIN = (
    "platform=cpu",
    f"{ACTOR}.optim.optimizer=SGD",
    f"{ACTOR}.optim.lr={LEARNING_RATE}",
    f"{ACTOR}.optim.override_optimizer_config={{momentum:0}}",
)


def _megatron(**sizes: int) -> tuple[str, ...]:
    adam = f"{{adam_beta1:0.0,adam_beta2:0.0,adam_eps:{LARGE}}}"
    return (
        "platform=cpu_megatron",
        f"{ACTOR}.optim.lr={LEARNING_RATE * LARGE}",
        f"+{ACTOR}.optim.override_optimizer_config={adam}",
        *(f"{ACTOR}.megatron.{kind}_parallel_size={size}" for kind, size in sizes.items()),
    )


LAYOUTS: dict[str, tuple[int, tuple[str, ...]]] = {  # number of ranks, and overrides that spread the parameters
    "fsdp_1": (1, PLAIN),
    "fsdp_packed": (1, (*PLAIN, "actor_rollout_ref.model.use_remove_padding=true")),  # without flash-attn, too
    "fsdp_dp2": (2, PLAIN),
    "megatron_1": (1, _megatron()),
    "megatron_tp2_sp": (2, _megatron(tensor_model=2)),  # sequence parallelism comes with it: verl's default
    "megatron_dp2": (2, _megatron()),
    "megatron_pp2": (2, _megatron(pipeline_model=2)),
    "megatron_pp2_vpp2": (2, _megatron(pipeline_model=2, virtual_pipeline_model=2)),
    "megatron_cp2": (2, _megatron(context=2)),
}


def run(layout: str, model: Path, batches: list[Batch]) -> list[dict[str, Any]]:
    """Train on every batch from the same initial weights.

    Return for each batch ``refine_log_probs`` and ``refine_charged`` (a list a row), ``seen`` (log-probs of refinements
    in the update's own pass, by their rows' numbers), ``metrics`` and the trained ``parameters`` by Hugging Face's
    names.
    """
    num_ranks, overrides = LAYOUTS[layout]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(num_ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if "platform=cpu_megatron" in overrides:
        from recipe.cpu_platform.megatron import bridges

        bridges.apply()
        import verl.workers.engine.megatron  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        arguments = (_config(model, overrides), batches, Path(folder, "results.pt"))
        torch.multiprocessing.start_processes(_train, arguments, num_ranks, start_method="fork")
        return torch.load(arguments[-1], weights_only=False)


def _config(model: Path, overrides: tuple[str, ...]) -> DictConfig:
    common = [
        f"actor_rollout_ref.model.path={model}",
        "data.train_batch_size=8",
        f"{ACTOR}.optim.weight_decay=0",
        f"{ACTOR}.optim.clip_grad=1e9",
        f"{ACTOR}.optim.total_training_steps=1000",
        f"{ACTOR}.ppo_mini_batch_size=8",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=3",  # the last one is never full
    ]
    with initialize_config_module("recipe.online_refiner.config", version_base=None):
        return compose("online_refiner", overrides=[*overrides, *common]).actor_rollout_ref


def _train(rank: int, config: DictConfig, batches: list[Batch], out: Path) -> None:
    os.environ["RANK"] = str(rank)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what engines say about themselves; an error reaches the parent in another way
    os.dup2(nowhere, 2)
    worker = ActorWorker(config, role="actor")
    worker.init_model()
    if config.actor.strategy == "fsdp2":
        engine = worker.actor.engine
        # verl replaces the forward pass of models that see.
        assert isinstance(engine, ActorEngine) and takes_positions(engine.module) is not sees(engine.module)
    results = []
    initial = {name: value.detach().clone() for name, value in _parameters(worker)}
    for batch in batches:
        with torch.no_grad():
            for name, value in _parameters(worker):
                value.copy_(initial[name])
        results.append(_train_on(worker, batch))
    if rank == 0:
        torch.save(results, out)
    torch.distributed.destroy_process_group()


def _parameters(worker: Any) -> list[tuple[str, Any]]:
    module = worker.actor.engine.module
    chunks = module if isinstance(module, list) else [module]  # Megatron's virtual pipeline stages
    return [(f"{n}.{name}", value) for n, chunk in enumerate(chunks) for name, value in chunk.named_parameters()]


def _train_on(worker: Any, batch: Batch) -> dict[str, Any]:
    engine, settings = worker.actor.engine, worker.actor.engine_config
    object.__setattr__(settings, "use_dynamic_bsz", batch.max_tokens is not None)
    object.__setattr__(settings, "max_token_len_per_gpu", batch.max_tokens)
    object.__setattr__(settings, "micro_batch_size_per_gpu", batch.micro_batch_size)
    share, num_shares = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    data, found = _share(batch, share, num_shares), {}
    refined = worker.compute_refine_log_prob(data.copy())
    output = worker.update_actor(data)
    found["seen"] = {
        number: one for of_rank in _gather(worker.take_shown_log_probs()) for number, one in of_rank.items()
    }
    metrics = [one for one in _gather(None if output is None else dict(tu.get(output, "metrics"))) if one is not None]
    for name in ("refine_log_probs", "refine_charged"):  # some ranks compute no output
        own = None if refined is None else [row.tolist() for row in refined[name].unbind()]
        of_share = {number: one for number, one in _gather((share, own)) if one is not None}
        found[name] = [of_share[n % num_shares][n // num_shares] for n in range(len(batch.rows))]
    parameters = {name: value.detach().cpu().clone() for name, value in engine.get_per_tensor_param()[0]}
    return {**found, "metrics": metrics[0], "parameters": parameters}


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def with_sizes(pictures: dict[str, Any]) -> dict[str, Any]:
    """Return the pictures of a row with the numbers of patches that verl's agent loop adds to them."""
    if not pictures:
        return pictures
    num_frames, heights, widths = pictures["image_grid_thw"].T
    return {**pictures, "images_seqlens": torch.repeat_interleave(heights * widths, num_frames)}


def _share(batch: Batch, share: int, num_shares: int) -> Any:
    """Return the rows of a data-parallel rank as the TransferQueue hands them to it."""
    rows, num_rows = [row["columns"] for row in batch.rows[share::num_shares]], len(batch.rows)
    columns = {name: [torch.tensor(row[name]) for row in rows] for name in rows[0]}
    tensors: dict[str, Any] = {
        name: jagged(column) if column[0].dim() else torch.stack(column) for name, column in columns.items()
    }
    tensors["position_ids"] = tu.nested_tensor_from_tensor_list(columns["position_ids"])
    tensors[PICTURES] = [with_sizes(row["pictures"]) for row in batch.rows[share::num_shares]]
    settings = {
        "calculate_entropy": False,
        "distillation_use_topk": False,
        "distillation_only": False,
        "temperature": 1.0,
        "global_batch_size": num_rows,
        "mini_batch_size": num_rows,
        "epochs": batch.epochs,
        "seed": 1,
        "dataloader_kwargs": {"shuffle": False},
        ONLY_RESPONSES: True,
    }
    if batch.token_weights:
        settings |= {"refine_eta": batch.eta, "refine_normaliser": batch.normaliser}
    if batch.is_soft:
        settings["refine_loss"] = ForwardKl()
    return tu.get_tensordict(tensors, settings)
