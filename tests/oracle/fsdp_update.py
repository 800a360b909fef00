"""An update of the actor by verl's FSDP engine in a separate process, as in a run on one GPU."""

import os
import socket
from pathlib import Path

import torch
import verl  # noqa: F401  (loads the CPU platform)
from omegaconf import DictConfig

from recipe.online_refiner.verl_glue.actor_worker import ActorWorker


def learn_each(rank: int, runs: list[tuple[DictConfig, Path]]) -> None:
    """Do :func:`learn` with each of some configs and folders, in a fork of this process, which has all imports."""
    for run in runs:
        torch.multiprocessing.start_processes(learn, run, 1, start_method="fork")


def learn(rank: int, config: DictConfig, folder: Path) -> None:
    """Make the update on ``batch.pt`` of a folder, with the model in it, and write the weights to ``learnt.pt``.

    Args:
        rank: 0.
        config: A run's block ``actor_rollout_ref``.
        folder: Has the model and the batch.
    """
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    worker = ActorWorker(config, role="actor")
    worker.init_model()
    worker.update_actor(torch.load(folder / "batch.pt", weights_only=False))
    learnt = {name: value.clone() for name, value in worker.actor.engine.get_per_tensor_param()[0]}
    torch.save(learnt, folder / "learnt.pt")
    torch.distributed.destroy_process_group()
