"""What counts as a reward, and what a reward function's errors end: the answer that they are of, and nothing else."""

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composed_main import composed
from omegaconf import DictConfig
from transformers import AutoTokenizer
from verl import DataProto

from recipe.online_refiner.verl_glue.patches import RewardLoopWorker
from recipe.rewarding.answers import RewardFunctionError, awaited, checked, checked_score

OWN = """
import asyncio, math, numpy as np
{kind} compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if ground_truth == "right":
        return 0.5
    {answer}
"""
ODD = {
    "raise SystemExit(3)": "the reward function raised SystemExit: 3",
    "raise KeyboardInterrupt": "the reward function raised KeyboardInterrupt",
    "raise GeneratorExit": "the reward function raised GeneratorExit",
    "raise asyncio.CancelledError('late')": "the reward function raised CancelledError: late",
    "return next(iter([]))": "StopIteration",  # a coroutine's is a RuntimeError
    "raise MemoryError": "MemoryError",
    "return None": "the reward is no finite number: None",
    "return '0.5'": "the reward is no finite number: '0.5'",
    "return [0.5]": r"the reward is no finite number: \[0.5\]",
    "return math.nan": "the reward is no finite number: nan",
    "return np.float32('inf')": "the reward is no finite number: ",
    "return {'reward': 1.0, 'acc': True}": r"a dict without score \(it has reward, acc\); add 'score': 0.5",
    "return {'score': None}": "the reward is no finite number: None",
    "return {}": r"a dict without score \(it has nothing\)",
    "return asyncio.sleep(0)": "the reward is no finite number: <coroutine",
}
NUMBERS = {"True": 1.0, "np.float16(0.5)": 0.5, "np.array(-1)": -1.0, "{'score': np.int64(2), 'n': 1}": 2.0, "7": 7.0}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_llama)


@pytest.fixture
def worker(tmp_path: Path, tiny_llama: Path) -> Callable[..., RewardLoopWorker]:
    """Return a function that makes the reward worker of a run whose reward function ends with these words."""

    def make(answer: str, kind: str = "def", manager: str = "naive") -> RewardLoopWorker:
        file = tmp_path / "own.py"
        file.write_text(OWN.format(kind=kind, answer=answer))
        config: DictConfig = composed(
            f"actor_rollout_ref.model.path={tiny_llama}",
            f"reward.custom_reward_function.path={file}",
            f"reward.reward_manager.name={manager}",
        )
        return RewardLoopWorker(config)

    return make


def request(truth: str) -> DataProto:
    """Return what an agent loop asks of a reward worker."""
    tensors = {
        "prompts": torch.ones(1, 1, dtype=torch.long),
        "responses": torch.ones(1, 3, dtype=torch.long),
        "attention_mask": torch.ones(1, 4, dtype=torch.long),
    }
    columns = {"data_source": "own", "reward_model": {"ground_truth": truth}, "extra_info": {}}
    return DataProto.from_dict(tensors, {name: np.array([value]) for name, value in columns.items()})


async def rewards(worker: RewardLoopWorker, *truths: str) -> list[Any]:
    """Return the rewards, or errors, of answers that are rewarded at the same time."""
    worker.reward_manager.loop = asyncio.get_running_loop()  # as in the worker's own
    asked = (worker.compute_score(request(truth)) for truth in truths)
    said = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
    return [one if isinstance(one, BaseException) else one["reward_score"] for one in said]


@pytest.mark.parametrize("manager", ["naive", "dapo"])
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("answer", ODD)
def test_an_odd_reward_costs_its_own_rollout(worker: Callable, answer: str, kind: str, manager: str) -> None:
    first, odd, last = asyncio.run(rewards(worker(answer, kind, manager), "right", "wrong", "right"))
    assert (first, last) == (0.5, 0.5)
    assert isinstance(odd, Exception) and re.search(ODD[answer], f"{type(odd).__name__}: {odd}")


@pytest.mark.parametrize("answer", NUMBERS)
def test_a_number_is_a_reward_of_whatever_type(worker: Callable, answer: str) -> None:
    (found,) = asyncio.run(rewards(worker(f"return {answer}"), "wrong"))
    assert found == NUMBERS[answer] and type(found) is float


def test_a_limit_of_time_may_still_end_a_function() -> None:
    async def slow() -> float:
        await asyncio.sleep(60)
        return 1.0

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(checked(slow)(), 0.05)

    asyncio.run(run())


def test_what_another_manager_raises_ends_no_loop() -> None:
    async def fails() -> None:
        raise SystemExit(3)

    with pytest.raises(RewardFunctionError, match="raised SystemExit: 3"):
        asyncio.run(awaited(fails()))


class Ending(dict):
    """A dict of the user's that ends the process when it is read."""

    def __contains__(self, key: object) -> bool:
        raise SystemExit(3)


async def ending(**_: Any) -> Ending:
    return Ending()


@pytest.mark.parametrize("function", [Ending, ending])
def test_an_answer_that_raises_when_it_is_read_ends_no_loop(function: Callable) -> None:
    with pytest.raises(RewardFunctionError, match="SystemExit: 3"):
        if (answer := checked(function)()) is not None:
            asyncio.run(answer)


@pytest.mark.parametrize("value", [math.nan, "1", None, [1.0], {"acc": 1.0}])
def test_what_is_no_number_is_shown(value: Any) -> None:
    with pytest.raises(ValueError, match="the reward"):
        checked_score(value)
