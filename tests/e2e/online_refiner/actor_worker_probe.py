"""The ranks of the actor's real worker (FSDP2, verl's loss), trained on given batches; run by test_sft_reference.py.

``python actor_worker_probe.py MODEL CASES OUT`` with torch.distributed's environment variables, but for the rank. CASES
holds a list of batches with their settings; rank 0 writes for each the parameters after training, verl's metrics and
log pi(a').
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import verl  # noqa: F401  (loads the CPU platform)
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from verl.utils import tensordict_utils as tu

from recipe.online_refiner import workers
from recipe.online_refiner.constraint import since
from recipe.online_refiner.credit import CREDITS
from recipe.online_refiner.refined_rows import jagged

CONFIG = Path(workers.__file__).parent / "config"


def config(model: str) -> DictConfig:
    overrides = [
        *("platform=cpu", f"actor_rollout_ref.model.path={model}", "data.train_batch_size=8"),
        *("actor_rollout_ref.actor.optim.optimizer=SGD", "actor_rollout_ref.actor.optim.lr=0.02"),
        *("actor_rollout_ref.actor.optim.weight_decay=0", "actor_rollout_ref.actor.optim.clip_grad=1e9"),
        "actor_rollout_ref.actor.optim.override_optimizer_config={momentum:0}",
        *("actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    ]
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose("online_refiner", overrides=overrides).actor_rollout_ref


def share(case: dict[str, Any], rank: int, num_ranks: int) -> Any:
    """Return a rank's rows as TransferQueue hands them to a worker."""
    rows = case["rows"][rank::num_ranks]
    tensors = {
        name: torch.nested.as_nested_tensor([torch.tensor(row[name]) for row in rows], layout=torch.jagged)
        for name in rows[0]
        if isinstance(rows[0][name], list)
    }
    tensors |= {name: torch.tensor([row[name] for row in rows]) for name in ("refine_used", "refine_start")}
    num_rows = len(case["rows"])
    settings = {
        **{"calculate_entropy": False, "distillation_use_topk": False, "distillation_only": False, "temperature": 1.0},
        **{"global_batch_size": num_rows, "mini_batch_size": num_rows, "epochs": case["epochs"], "seed": 1},
        **{"dataloader_kwargs": {"shuffle": False}, "sft_eta": case["eta"], "sft_normaliser": case["normaliser"]},
        **{"sft_token_weights": case["token_weights"], "alignment": "position"},
    }
    return tu.get_tensordict(tensors, settings)


def charged_advantages(data: Any, costs: torch.Tensor, case: dict[str, Any]) -> torch.Tensor:
    """Return the rows' advantages as a refine worker changes them."""
    columns = data.select("advantages", "response_mask").to_padded_tensor(0)
    turn = since(data["refine_start"], columns["response_mask"])
    change = CREDITS[case["credit"]].advantages
    assert change is not None
    after = change(columns["advantages"], {"turn": turn, "cost": costs}, torch.tensor([[case["eta"]]]))
    return jagged([row[: len(old)] for row, old in zip(after, data["advantages"].unbind(), strict=True)])


def train(rank: int, model: str, cases: Path, out: Path) -> None:
    """Train on every case from the same initial weights, as one of the ranks."""
    os.environ["RANK"] = str(rank)
    worker = workers.RefinerActorWorker(config(model), role="actor")
    worker.init_model()
    engine = worker.actor.engine
    initial = {name: parameter.detach().clone() for name, parameter in engine.module.named_parameters()}
    num_ranks = torch.distributed.get_world_size()
    results = []
    for case in torch.load(cases, weights_only=False):
        with torch.no_grad():
            for name, parameter in engine.module.named_parameters():
                parameter.copy_(initial[name])
        settings = worker.actor.engine_config
        object.__setattr__(settings, "use_dynamic_bsz", case["max_tokens"] is not None)
        object.__setattr__(settings, "max_token_len_per_gpu", case["max_tokens"])
        object.__setattr__(settings, "micro_batch_size_per_gpu", case["micro_batch_size"])
        data = share(case, rank, num_ranks)
        refined = worker.compute_refine_log_prob(data.copy())
        log_probs = refined["refine_log_probs"]
        if case["credit"]:
            data["advantages"] = charged_advantages(data, refined["refine_divergence"], case)
        metrics = tu.get(worker.update_actor(data), "metrics")
        results.append(
            {
                "refine_log_probs": [row.tolist() for row in log_probs.unbind()],
                "metrics": metrics,
                "parameters": {
                    name: parameter.full_tensor().detach().clone()
                    for name, parameter in engine.module.named_parameters()
                },
            }
        )
    if rank == 0:
        torch.save(results, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    arguments = (sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    torch.multiprocessing.start_processes(train, arguments, int(os.environ["WORLD_SIZE"]), start_method="fork")
