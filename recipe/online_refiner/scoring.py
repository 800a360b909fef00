"""Rewards responses through verl's reward loop, as verl rewards rollouts."""

import random
from typing import Any

import numpy as np
import torch
from ray.actor import ActorHandle
from tensordict import TensorDict
from verl.protocol import DataProto

from recipe.online_refiner.rollout import Rollout


class RewardLoopScore:
    """Scores one response on one of verl's reward loop workers.

    Args:
        workers: ``RewardLoopManager.reward_loop_workers``.
    """

    def __init__(self, workers: list[ActorHandle]) -> None:
        """Keep the handles."""
        self._workers = workers

    async def __call__(self, rollout: Rollout, response_ids: list[int]) -> float:
        """Return the reward of a response in the place of the rollout's; raises what the reward function raises."""
        result = await random.choice(self._workers).compute_score.remote(reward_request(rollout, response_ids))
        # verl keeps a rollout's reward in float32; at another precision equal rewards would differ and pass the gate.
        return float(np.float32(result["reward_score"]))


def reward_request(rollout: Rollout, response_ids: list[int]) -> DataProto:
    """Return what ``AgentLoopWorker._compute_score`` (``verl/experimental/agent_loop/agent_loop.py``) would send."""
    prompts, responses = torch.tensor([rollout.prompt_ids]), torch.tensor([response_ids])
    input_ids = torch.cat([prompts, responses], dim=1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": input_ids,
        "attention_mask": torch.ones_like(input_ids),
        "position_ids": torch.arange(input_ids.shape[1])[None],
    }
    lengths = {"prompt_len": len(rollout.prompt_ids), "response_len": len(response_ids)}
    return DataProto(
        batch=TensorDict(tensors, batch_size=1),
        non_tensor_batch={name: _column(name, value) for name, value in {**rollout.request, **lengths}.items()},
    )


def _column(name: str, value: Any) -> np.ndarray:
    """Return a column of one row with the type that verl's has."""
    return np.array([value], dtype=object if name == "tool_extra_fields" else None)
