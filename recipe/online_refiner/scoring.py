"""Rewards refined responses through verl's reward loop, as verl rewards rollouts."""

import asyncio
import itertools
from typing import Any

import numpy as np
import torch
from ray.actor import ActorHandle
from tensordict import TensorDict
from verl.protocol import DataProto

from recipe.online_refiner.refine_stage import Rollout, Score


def _object_array(value: Any) -> np.ndarray:
    array = np.empty(1, dtype=object)
    array[0] = value
    return array


class RewardLoopScore:
    """Scores one refined response on one of verl's reward loop workers, in turn.

    The request is what ``AgentLoopWorker._compute_score`` (``verl/experimental/agent_loop/agent_loop.py``) sends for a
    rollout, with the refinement in place of the response.

    Args:
        workers: ``RewardLoopManager.reward_loop_workers``.
    """

    def __init__(self, workers: list[ActorHandle]) -> None:
        """Keep the handles."""
        self._workers = itertools.cycle(workers)

    async def __call__(self, rollout: Rollout, response_ids: list[int]) -> float:
        """Return r(s0, a'); raises what the reward function raises, as a Ray error."""
        prompts = torch.tensor([rollout.prompt_ids])
        responses = torch.tensor([response_ids])
        input_ids = torch.cat([prompts, responses], dim=1)
        tensors = {
            "prompts": prompts,
            "responses": responses,
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
            "position_ids": torch.arange(input_ids.shape[1])[None],
        }
        columns = {
            **rollout.sample,
            "__num_turns__": 2,
            "tool_extra_fields": {},
            "prompt_len": len(rollout.prompt_ids),
            "response_len": len(response_ids),
        }
        data = DataProto(
            batch=TensorDict(tensors, batch_size=1),
            non_tensor_batch={name: _object_array(value) for name, value in columns.items()},
        )
        result = await next(self._workers).compute_score.remote(data)
        # verl keeps a rollout's reward in float32; at another precision equal rewards would differ and pass the gate.
        return float(np.float32(result["reward_score"]))


async def score_all(score: Score, rollouts: list[Rollout]) -> list[float]:
    """Reward the responses themselves, all at once: what a colocated reward model has to do after the rollout."""
    return list(await asyncio.gather(*(score(rollout, rollout.response_ids) for rollout in rollouts)))
