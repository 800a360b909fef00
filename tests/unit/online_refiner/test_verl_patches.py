"""What verl does with this recipe's patches."""

import asyncio
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from composed_main import composed
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer, trainer_separate_async
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.method.pairs import Pair, Verdict
from recipe.online_refiner.verl_glue import patches
from recipe.online_refiner.verl_glue.rows import with_pair
from recipe.online_refiner.verl_glue.task_runner import OnlineRefinerSeparateAsync
from recipe.online_refiner.verl_glue.trainer import RefinedLogProbs
from refiner_worker.client import RunEndedError


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


def test_log_probs_of_refinements_are_computed_between_the_separate_trainer_and_verls_base() -> None:
    order = list(OnlineRefinerSeparateAsync.__mro__)
    own = [one for one in order if "_compute_old_log_prob" in vars(one)]
    assert own == [trainer_separate_async.PPOTrainerSeparateAsync, RefinedLogProbs, PPOTrainer]


ANSWERS = {"score": [0.1, -0.3, 0.7, 1e9 + 0.1], "acc": [True, False, True, True], "tokens": [3, 1, 2, 7]}


def test_groups_with_a_used_refinement_pass_dapos_filter() -> None:
    def tag(verdict: str) -> dict:
        return with_pair({}, Pair(reward=-1.0, verdict=Verdict(verdict), is_used=verdict == "accepted"))

    rewards = {"a": -1.0, "b": -1.0, "c": 1.0, "d": None}
    verdicts = {"a": "accepted", "b": "not_better", "c": "max_reward", "d": "accepted"}
    buffer = SimpleNamespace(
        partitions={"train": {"a_0_0": tag("timeout"), **{f"{name}_1_0": tag(one) for name, one in verdicts.items()}}},
        _dapo_classification_cache={"train": rewards},
        _dapo_filtered_keys=lambda _: ({"a", "b", "c"}, Counter({-1.0: 2, 1.0: 1})),
    )
    groups, counts = patches.keep_refined(buffer)._dapo_filtered_keys("train")
    assert groups == {"b", "c"} and counts == Counter({-1.0: 1, 1.0: 1})


@pytest.mark.parametrize("mode", ["none", "penalty"])
def test_looking_more_often_makes_no_step_idle(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Verl lends the training GPUs for longer after idle steps: those that wait for more than its 2 s between looks."""
    config = composed(f"constraint.mode={mode}", "trainer.v1.trainer_mode=separate_async")
    trainer: Any = object.__new__(OnlineRefinerSeparateAsync)
    trainer.config, trainer.blocks, trainer.parameter_sync_step = config, read_blocks(config), 4
    trainer.trainer_mode = "separate_async"
    buffer = trainer.replay_buffer = trainer._build_replay_buffer()
    slept: list[float] = []
    monkeypatch.setattr(replay_buffer.time, "sleep", slept.append)
    for _ in range(3):
        buffer._wait_for_next_poll("train", time.time())
    assert slept == [patches.POLL_S] * 3

    trainer.hybrid_rollout_config = config.trainer.v1.separate_async.hybrid_rollout
    trainer._switch_threshold_ratio, trainer._idle_steps, trainer._calm_steps = 0.4, 0, 0
    for wait_s, is_idle in ((1.0, False), (1.99, False), (2.01, True)):
        trainer._step_sample_wait_seconds = wait_s
        assert trainer._step_had_idle() is is_idle
    trainer._step_sample_wait_seconds = 1.0
    for _ in range(30):
        trainer._adapt_switch_threshold(trainer._step_had_idle())
    assert trainer._switch_threshold_ratio == pytest.approx(0.25), "no more than a mini-batch is waited for"


def test_a_run_whose_groups_fail_ends() -> None:
    """Verl's buffer takes a group out for one failed session, and asks for another."""
    buffer = object.__new__(ReplayBufferAsync)
    buffer.max_off_policy_threshold = buffer.filter_groups_metric = None
    buffer.failure_keys, cleared = {"train": {"a", "b"}}, []
    buffer._clear_groups = lambda _, uids: cleared.append(uids)
    buffer._metrics_prefix = lambda _: "training"
    patches.end_if_most_fail(buffer, 4)
    for step in (1, 1, 2, 2):
        buffer._evict_terminal_groups(step, "train", buffer._terminal_eviction_reasons(step, "train"))
    assert cleared == [{"a", "b"}] * 4
    with pytest.raises(RunEndedError, match="step 2: 6 prompts are lost"):
        buffer._evict_terminal_groups(2, "train", buffer._terminal_eviction_reasons(2, "train"))


def test_rows_of_no_prompt_are_taken_out_of_a_restored_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"a": {"is_prompt": True}, "a_0_0": {}, "b_0_0": {}, "b_1_0": {"is_prompt": False}}
    cleared: list[list[str]] = []
    monkeypatch.setattr(patches.tq, "kv_list", lambda _: {"train": tags})
    monkeypatch.setattr(patches.tq, "kv_clear", lambda keys, partition_id: cleared.append(keys))
    patches.forget_trained_rows()
    assert cleared == [["b_0_0", "b_1_0"]]
    monkeypatch.setattr(patches.tq, "kv_list", lambda _: None)
    patches.forget_trained_rows()
    assert len(cleared) == 1
