"""Groups of a refiner that streams: when they are refined, which DAPO evicts, and how long the run waits for them."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import own_queue
import pytest
import torch
from composed_main import composed
from transfer_queue import KVBatchMeta
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

from recipe.online_refiner.method.pairs import Pair, Verdict
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.metrics import streaming_metrics
from recipe.online_refiner.verl_glue.streaming import Group, StreamingWorker


def output(reward: float, **extra: float) -> AgentLoopOutput:
    fields = {"prompt_ids": [1], "response_ids": [2, 3], "response_mask": [1, 1], "metrics": {}, "num_turns": 2}
    return AgentLoopOutput(**fields, reward_score=reward, extra_fields={"reward_extra_info": extra})


def group(*outputs: AgentLoopOutput) -> Group:
    return Group(num_sessions=len(outputs), missing=set(), outputs={f"u_{n}_0": one for n, one in enumerate(outputs)})


def test_groups_that_dapo_evicts() -> None:
    same, different = group(output(0.5), output(0.5)), group(output(0.5), output(0.25))
    assert same.is_evicted_by("reward") and not different.is_evicted_by("reward")
    assert not same.is_evicted_by(None)
    assert not group(output(0.5)).is_evicted_by("reward"), "verl keeps groups of one"
    assert group(output(0.5, acc=1.0), output(0.25, acc=1.0)).is_evicted_by("acc")
    tensors = group(*(output(torch.tensor(-2.0), acc=1.0) for _ in range(3)))  # of verl's penalty for long responses
    assert tensors.is_evicted_by("reward")
    assert not group(*(output(0.5, acc=0.1) for _ in range(3))).is_evicted_by("acc"), "verl: their deviation is 1e-17"
    same.num_sessions += 1
    assert not same.is_evicted_by("reward"), "verl keeps a group that has lost a session"


def test_exposed_and_hidden_seconds() -> None:
    def refined(started_at: float, refined_at: float, verdict: str = "accepted") -> Pair:
        return Pair(reward=0.0, verdict=Verdict(verdict), started_at=started_at, refined_at=refined_at)

    solved = refined(16.0, 16.0, "max_reward")
    overlapping = [refined(11.0, 14.0), refined(12.0, 13.0), refined(15.0, 18.5), solved]
    assert streaming_metrics(overlapping, 0.0) == {"timing_s/wait_refiner": 2.5, "refiner/hidden_s": 5.0}
    alone = streaming_metrics([refined(12.0, 13.0), solved], 0.0)
    assert alone == {"timing_s/wait_refiner": 0.0, "refiner/hidden_s": 4.0}
    assert streaming_metrics([solved], 0.0) == {}


@pytest.mark.parametrize(("began_at", "waited_s"), [(50.0, 5.0), (103.0, 2.0), (105.0, 0.0), (200.0, 0.0)])
def test_a_trainer_that_trains_meanwhile_does_not_wait(began_at: float, waited_s: float) -> None:
    times = [(60.0, 64.0), (100.0, 105.0)]
    pairs = [Pair(reward=0.0, verdict=Verdict.ACCEPTED, started_at=a, refined_at=b) for a, b in times]
    found = streaming_metrics(pairs, began_at)
    assert found == {"timing_s/wait_refiner": waited_s, "refiner/hidden_s": 40.0}


def test_a_step_has_the_clock_of_its_pairs() -> None:
    before = time.time()
    assert before <= StepState().started_at <= time.time()


class Sessions(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """verl's agent loop worker with sessions that are over at once: their rewards, or what went wrong, are given."""

    rewards: list[float | Exception]

    async def _run_agent_loop(self, sampling_params: dict, trajectory: dict, **kwargs: Any) -> None:
        found = self.rewards[kwargs["session_id"]]
        if isinstance(found, Exception):
            raise found
        await self._agent_loop_postprocess(output(found), trajectory["validate"], **kwargs)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> None:
        """Put nothing into the queue."""


class Worker(StreamingWorker, Sessions):
    """The streaming worker around these sessions, and what it refines."""

    def __init__(self, rewards: list[float | Exception], *, metric: str | None = None, rescues: bool = False) -> None:
        self.config = composed("actor_rollout_ref.rollout.n=3", "actor_rollout_ref.rollout.val_kwargs.n=3")
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.rewards, self.filter_metric, self.rescues, self.groups = rewards, metric, rescues, {}
        self.refined: list[KVBatchMeta] = []
        self.failure: Exception | None = None
        self.refine_worker = self  # type: ignore[assignment]
        self.set_refiner("client", 64)  # type: ignore[arg-type]

    async def refine(self, rows: KVBatchMeta, client: str, max_model_len: int) -> None:
        assert (client, max_model_len, self.groups["u"].missing) == ("client", 64, set())
        self.refined.append(rows)
        if self.failure:
            raise self.failure

    def run(self, *, validate: bool = False, **prompt: Any) -> list[list[str]]:
        """Write the sessions of a prompt, and return the keys of what was refined."""
        asyncio.run(self._run_prompt({"uid": "u", **prompt}, {}, {"validate": validate}))
        assert not self.groups
        return [rows.keys for rows in self.refined]


@pytest.fixture
def queue() -> Iterator[None]:
    with own_queue.serving():
        yield


@pytest.mark.usefixtures("queue")
def test_a_group_is_refined_once_when_its_last_session_is_over() -> None:
    worker, lost = Worker([0.5, 0.25, 1.0]), RuntimeError("lost")
    assert worker.run() == [["u_0_0", "u_1_0", "u_2_0"]]
    assert worker.refined[0].tags == [{"seq_len": 3, "response_len": 2}] * 3
    assert worker.refined[0].partition_id == "train"
    assert Worker([0.5, lost, 1.0]).run() == [["u_0_0", "u_2_0"]]
    assert Worker([lost] * 3).run() == []
    assert Worker([0.5, 0.25, 1.0]).run(validate=True) == [], "nothing learns from it"
    assert Worker([0.5]).run(__rollout_n__=1) == [["u_0_0"]], "a prompt may have a number of its own"
    assert Worker([0.5] * 3, metric="reward").run() == [], "DAPO drops it"
    assert len(Worker([0.5] * 3, metric="reward", rescues=True).run()) == 1
    assert len(Worker([0.5, 0.5, lost], metric="reward").run()) == 1
    failing = Worker([0.5, 0.25, 1.0])
    failing.failure = RuntimeError("no replica")
    assert len(failing.run()) == 1, "and the rollout goes on"
