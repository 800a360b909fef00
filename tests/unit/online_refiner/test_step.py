"""A step: the hooks that verl has to call in their order, and what eta learns of its mini-batches."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.metrics import zeros
from recipe.online_refiner.pairs import Pair, Verdict
from recipe.online_refiner.stages import Stages
from recipe.online_refiner.step import HOOKS, StepState
from recipe.online_refiner.task_runner import OnlineRefinerSync, TaskRunner
from refiner_worker.client import RunEndedError

KEYS = ["a_0_0", "a_1_0"]
CALLED = HOOKS[1:]
"""Those that get a batch."""


def test_hooks_in_their_order_pass() -> None:
    state = StepState(step=3, hook="on_sample_begin")
    state.enter("_balance_batch", KEYS)
    state.keys = KEYS[::-1]  # verl sorts them there
    for hook in CALLED[1:]:
        state.enter(hook, KEYS[::-1])
    assert state.hook == HOOKS[-1]


@pytest.mark.parametrize(("before", "hook"), pairwise(HOOKS))
@pytest.mark.parametrize("trainer_class", TaskRunner.trainers.values())
def test_a_step_ends_where_the_hook_before_was_not_called(before: str, hook: str, trainer_class: type) -> None:
    """None of verl's own is reached; without the check they would fail for want of everything else."""
    if (trainer_class.__name__, hook) == ("OnlineRefinerSeparateAsync", "_compute_old_log_prob"):
        trainer_class = OnlineRefinerSync  # verl puts weights aside there before it calls ours
    trainer: Any = object.__new__(trainer_class)
    batch = KVBatchMeta(keys=KEYS, tags=[{}, {}], partition_id="train")
    for reached in ["", *(one for one in HOOKS if one != before)]:
        trainer.state = StepState(step=3, hook=reached)
        with pytest.raises(RunEndedError, match=f"step 3: the trainer has called {hook} without {before} for the same"):
            getattr(trainer, hook)(batch, metrics={})


@pytest.mark.parametrize("hook", CALLED[1:])
def test_a_step_ends_where_the_batch_is_another_one(hook: str) -> None:
    state = StepState(hook=HOOKS[HOOKS.index(hook) - 1], keys=KEYS)
    for others in (KEYS[::-1], KEYS[:1], ["b_0_0", "b_1_0"]):
        with pytest.raises(RunEndedError, match=hook):
            state.enter(hook, others)


class PlayedSteps(OnlineRefinerSync):
    """verl's loop over mini-batches, each with given D a rollout in the place of all that a mini-batch does."""

    def __init__(self, stages: Stages, parts: list[list[float]]) -> None:
        self.config = OmegaConf.create({"data": {"train_batch_size": len(parts)}})
        self.parameter_sync_step = len(parts)
        self.stages, self.played, self.etas = stages, parts, []
        self.num_restarts = self.global_steps = 0

    def prepare_step(self) -> dict:
        self.global_steps += 1
        return {}

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        self.on_sample_begin()
        self.state.metrics = zeros()
        for row, per_token in enumerate(self.played[self.local_trigger_step]):
            pair = Pair(reward=0.0, verdict=Verdict("accepted"), divergence=4 * per_token, num_compared_tokens=4)
            self.state.pairs[row] = pair
        self.stages.score_with_actor(KVBatchMeta(), self.state, None)
        self.etas.append(self.state.eta)
        return KVBatchMeta(partition_id="train")


@pytest.fixture
def make_stages(config: DictConfig) -> Any:
    def make() -> Stages:
        config.constraint.update(mode="sft", eta=0.01, eta_schedule="adaptive", delta=0.1)
        config.measure.cross_entropy_all_every = 0
        return Stages(config, read_blocks(config), SimpleNamespace(), 10)  # type: ignore[arg-type]

    return make


def test_an_adaptive_eta_makes_one_dual_step_a_step(make_stages: Any) -> None:
    """Its D is the mean over all rollouts: 1.2 times delta in each of these steps, whatever mini-batches there are."""
    expected = 0.01 * 2.718281828459045 ** (0.1 * 0.2 * 10)
    for parts in ([[0.12]], [[0.12] * 4] * 8, [[0.0], [0.12, 0.2, 0.16]], [[0.24] * 3, [0.0] * 3]):
        stages = make_stages()
        trainer = PlayedSteps(stages, parts)
        for step in range(1, 11):
            metrics: dict[str, float] = {}
            trainer.step(metrics, {})
            before = 0.01 * 2.718281828459045 ** (0.1 * 0.2 * (step - 1))
            assert trainer.etas[-len(parts) :] == pytest.approx([before] * len(parts)), "one eta in all mini-batches"
            assert metrics["constraint/eta"] == pytest.approx(before)
            assert metrics["constraint/divergence_per_token"] == pytest.approx(0.12)
        assert stages._eta.at(11) == pytest.approx(expected), parts
