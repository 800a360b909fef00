"""Keeps what the actor learns from; ``actor_rollout_ref.model.external_lib`` loads it into each worker."""

import os
import uuid
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from recipe.online_refiner.verl_glue.actor_worker import ActorWorker, MiniBatchWorker

COLUMNS = ("responses", "refine_ids", "refine_mask", "refine_weights", "refine_counterparts", "refine_charged")


def kept(method: Any) -> Any:
    """Return a method that saves the rows that it gets, and what it says of them."""

    def call(self: Any, data: TensorDict, *arguments: Any, **settings: Any) -> Any:
        columns = {name: [row.cpu() for row in data[name].unbind()] for name in COLUMNS if name in data}
        said = method(self, data, *arguments, **settings)
        if method.__name__ == "compute_refine_log_prob" and said is not None:
            columns |= {name: [row.cpu() for row in said[name].unbind()] for name in COLUMNS if name in said}
        if "refine_ids" in columns:
            torch.save(columns, Path(os.environ["SEEN_BY_ACTOR"], f"{method.__name__}-{uuid.uuid4().hex}.pt"))
        return said

    for name, value in vars(method).items():  # of verl's dispatch
        setattr(call, name, value)
    return call


MiniBatchWorker.train_batch = kept(MiniBatchWorker.train_batch)
ActorWorker.compute_refine_log_prob = kept(ActorWorker.compute_refine_log_prob)
