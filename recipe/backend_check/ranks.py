"""The ranks of the actor's worker, without Ray and trainer, as forks of one process that has imported everything."""

import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import verl  # noqa: F401  (loads the CPU platform)
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from verl.utils import tensordict_utils as tu

from recipe.backend_check.cases import Case
from recipe.backend_check.reference import LEARNING_RATE
from recipe.online_refiner import workers
from recipe.online_refiner.constraint import since
from recipe.online_refiner.credit import CREDITS
from recipe.online_refiner.refined_rows import jagged

CONFIG = Path(workers.__file__).parent / "config"
LARGE = 1e6
"""Adam without memory makes plain gradient steps with such an epsilon; Megatron's distributed optimizer is Adam."""

KINDS = {"tp": "tensor_model", "pp": "pipeline_model", "vpp": "virtual_pipeline_model", "cp": "context"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the parameters are spread over ranks."""

    num_ranks: int
    engine: str
    settings: dict[str, int]
    """Of verl's block ``megatron``."""

    def overrides(self) -> list[str]:
        """Return those of the config."""
        actor = "actor_rollout_ref.actor"
        if self.engine == "fsdp":
            optimizer = ["optimizer=SGD", f"lr={LEARNING_RATE}", "override_optimizer_config={momentum:0}"]
            return ["platform=cpu", *(f"{actor}.optim.{setting}" for setting in optimizer)]
        adam = f"{{adam_beta1:0.0,adam_beta2:0.0,adam_eps:{LARGE}}}"
        return [
            *("platform=cpu_megatron", f"{actor}.optim.lr={LEARNING_RATE * LARGE}"),
            f"+{actor}.optim.override_optimizer_config={adam}",
            *(f"{actor}.megatron.{name}={value}" for name, value in self.settings.items()),
        ]


def _megatron(num_ranks: int, **settings: int) -> Layout:
    of_verl = {f"{KINDS[kind]}_parallel_size": size for kind, size in settings.items()}
    return Layout(num_ranks=num_ranks, engine="megatron", settings=of_verl)


LAYOUTS: dict[str, Layout] = {
    "fsdp_1": Layout(num_ranks=1, engine="fsdp", settings={}),
    "fsdp_dp2": Layout(num_ranks=2, engine="fsdp", settings={}),
    "megatron_1": _megatron(1),
    "megatron_tp2_sp": _megatron(2, tp=2),
    "megatron_dp2": _megatron(2),
    "megatron_pp2": _megatron(2, pp=2),
    "megatron_pp2_vpp2": _megatron(2, pp=2, vpp=2),
    "megatron_cp2": _megatron(2, cp=2),
}
"""Sequence parallelism (``sp``) comes with tensor parallelism: verl's default."""


def run(layout: Layout, model: Path, cases: list[Case]) -> list[dict[str, Any]]:
    """Train on every case from the same initial weights.

    Returns:
        For each case ``log_probs`` (a list a row), ``metrics`` and the trained ``parameters``, by Hugging Face's names.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(layout.num_ranks), "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if layout.engine == "megatron":
        from recipe.cpu_platform.megatron import bridges

        bridges.apply()
        import verl.workers.engine.megatron  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        arguments = (layout, model, cases, Path(folder, "results.pt"))
        torch.multiprocessing.start_processes(_train, arguments, layout.num_ranks, start_method="fork")
        return torch.load(arguments[-1], weights_only=False)


def _config(layout: Layout, model: Path) -> DictConfig:
    overrides = [
        *(*layout.overrides(), f"actor_rollout_ref.model.path={model}", "data.train_batch_size=8"),
        *("actor_rollout_ref.actor.optim.weight_decay=0", "actor_rollout_ref.actor.optim.clip_grad=1e9"),
        *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.actor.optim.total_training_steps=1000",
    ]
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("online_refiner", overrides=overrides).actor_rollout_ref


def _train(rank: int, layout: Layout, model: Path, cases: list[Case], out: Path) -> None:
    os.environ["RANK"] = str(rank)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what engines say about themselves; an error reaches the parent in another way
    os.dup2(nowhere, 2)
    worker = workers.RefinerActorWorker(_config(layout, model), role="actor")
    worker.init_model()
    results = []
    initial = {name: value.detach().clone() for name, value in _parameters(worker)}
    for case in cases:
        with torch.no_grad():
            for name, value in _parameters(worker):
                value.copy_(initial[name])
        results.append(_train_on(worker, case))
    if rank == 0:
        torch.save(results, out)
    torch.distributed.destroy_process_group()


def _parameters(worker: Any) -> list[tuple[str, Any]]:
    module = worker.actor.engine.module
    chunks = module if isinstance(module, list) else [module]  # Megatron's virtual pipeline stages
    return [(f"{n}.{name}", value) for n, chunk in enumerate(chunks) for name, value in chunk.named_parameters()]


def _train_on(worker: Any, case: Case) -> dict[str, Any]:
    engine, settings = worker.actor.engine, worker.actor.engine_config
    object.__setattr__(settings, "use_dynamic_bsz", case.max_tokens is not None)
    object.__setattr__(settings, "max_token_len_per_gpu", case.max_tokens)
    object.__setattr__(settings, "micro_batch_size_per_gpu", case.micro_batch_size)
    share, num_shares = engine.get_data_parallel_rank(), engine.get_data_parallel_size()
    data = _share(case, share, num_shares)
    refined = worker.compute_refine_log_prob(data.copy())
    found = None  # a rank that computes no output reads it from the TransferQueue later on
    if refined is not None:
        found = {name: [row.tolist() for row in column.unbind()] for name, column in refined.items()}
    of_share = {number: one for number, one in _gather((share, found)) if one is not None}
    if case.credit:
        data["advantages"] = _charged(data, of_share[share], case)
    output = worker.update_actor(data)
    metrics = [one for one in _gather(None if output is None else dict(tu.get(output, "metrics"))) if one is not None]
    log_probs = [of_share[n % num_shares]["refine_log_probs"][n // num_shares] for n in range(len(case.rows))]
    parameters = {name: value.detach().cpu().clone() for name, value in engine.get_per_tensor_param()[0]}
    return {"log_probs": log_probs, "metrics": metrics[0], "parameters": parameters}


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def _share(case: Case, share: int, num_shares: int) -> Any:
    """Return the rows of a data-parallel rank as the TransferQueue hands them to it."""
    rows = case.rows[share::num_shares]
    tensors = {
        name: jagged([torch.tensor(row[name]) for row in rows]) for name in rows[0] if isinstance(rows[0][name], list)
    }
    tensors |= {
        name: torch.tensor([row[name] for row in rows]) for name in ("refine_used", "refine_start", "refine_kept")
    }
    num_rows = len(case.rows)
    settings = {
        **{"calculate_entropy": False, "distillation_use_topk": False, "distillation_only": False, "temperature": 1.0},
        **{"global_batch_size": num_rows, "mini_batch_size": num_rows, "epochs": case.epochs, "seed": 1},
        **{"dataloader_kwargs": {"shuffle": False}, "alignment": "position"},
    }
    if case.token_weights:
        settings |= {"sft_eta": case.eta, "sft_normaliser": case.normaliser, "sft_token_weights": case.token_weights}
    return tu.get_tensordict(tensors, settings)


def _charged(data: Any, refined: dict[str, Any], case: Case) -> torch.Tensor:
    """Return the rows' advantages as a refine worker changes them."""
    columns = data.select("advantages", "response_mask").to_padded_tensor(0)
    turn = since(data["refine_start"], columns["response_mask"])
    charged = jagged([torch.tensor(row) for row in refined["refine_charged"]]).to_padded_tensor(0)
    block = since(data["refine_start"] + data["refine_kept"], columns["response_mask"])
    known = {"turn": turn, "block": block, "refine_charged": charged}
    known["cost"] = torch.tensor(refined["refine_divergence"])
    assert case.credit is not None
    change = CREDITS[case.credit].advantages
    assert change is not None
    after = change(columns["advantages"], known, torch.tensor([[case.eta]]))
    return jagged([row[: len(old)] for row, old in zip(after, data["advantages"].unbind(), strict=True)])
