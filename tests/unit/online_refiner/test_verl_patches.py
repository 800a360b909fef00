"""What the patches assume of verl 0.9.1."""

import asyncio
import inspect

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.experimental.reward_loop import reward_loop

from recipe.online_refiner import patches

UPSTREAM = patches.RewardLoopWorker.__mro__[1]


def test_verl_still_reads_what_its_reward_model_does_not_return() -> None:
    modified = getattr(AgentLoopWorker, "__ray_metadata__", None)
    source = inspect.getsource(modified.modified_class if modified else AgentLoopWorker)
    assert 'result["reward_extra_info"]' in source
    assert 'return {"reward_score": rm_score}' in inspect.getsource(UPSTREAM.compute_score_disrm)
    assert "ray.remote(RewardLoopWorker)" in inspect.getsource(reward_loop.RewardLoopManager.__init__)


def test_the_patched_worker_answers_in_full() -> None:
    class Upstream(patches.RewardLoopWorker):
        def __init__(self) -> None:
            pass

        async def _preprocess_reward_inputs(self, data: object) -> str:
            return "text"

        async def _post_request(self, payload: dict, endpoint: str, max_retries: int = 16) -> dict:
            return {"data": [{"probs": [0.25]}]}

    worker = Upstream()
    worker.config = OmegaConf.create({"reward": {"reward_model": {"rollout": {"name": "vllm"}, "model_path": "rm"}}})
    assert asyncio.run(worker.compute_score_disrm(None)) == {"reward_score": 0.25, "reward_extra_info": {}}


def test_applying_puts_it_where_verl_looks() -> None:
    before = reward_loop.RewardLoopWorker
    try:
        patches.apply()
        assert reward_loop.RewardLoopWorker is patches.RewardLoopWorker
    finally:
        reward_loop.RewardLoopWorker = before
