"""Groups of a refiner that streams: which DAPO evicts, and how long the run waits for them."""

import time

import pytest
import torch
from verl.experimental.agent_loop import AgentLoopOutput

from recipe.online_refiner.metrics import streaming_metrics
from recipe.online_refiner.pairs import Pair, Verdict
from recipe.online_refiner.step import StepState
from recipe.online_refiner.streaming import Group


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
