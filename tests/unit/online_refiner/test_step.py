"""A step: the hooks that verl has to call in their order, and what eta learns of its mini-batches."""

import tempfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.method.pairs import Pair, Verdict
from recipe.online_refiner.method.step import HOOKS, StepState
from recipe.online_refiner.metrics import num_saying, zeros
from recipe.online_refiner.verl_glue.stages import Stages
from recipe.online_refiner.verl_glue.task_runner import OnlineRefinerSeparateAsync, OnlineRefinerSync, TaskRunner
from recipe.runs.files import RunDir
from refiner_worker.client import RunEndedError

KEYS = ["a_0_0", "a_1_0"]
CALLED = HOOKS[1:]
"""The hooks that get a batch."""


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
        self.run_dir, self.total_training_steps = RunDir(tempfile.mkdtemp()), None

    def prepare_step(self) -> dict:
        self.global_steps += 1
        return {}

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        self.on_sample_begin()
        self.state.metrics = zeros() | {"refiner/num_rollouts": len(self.played[self.local_trigger_step])}
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
        return Stages(config, read_blocks(config), SimpleNamespace())  # type: ignore[arg-type]

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
        assert stages._eta.value == pytest.approx(expected), parts


class Weights:
    """An actor whose weights are the number of its updates, and which puts them aside as verl's does."""

    def __init__(self) -> None:
        self.now, self.aside = 0, dict[int, int]()

    def save_model_to_cpu(self, n: int) -> None:
        self.aside[n] = self.now

    def restore_model_from_cpu(self, n: int) -> None:
        self.now = self.aside[n]

    def clear_cpu_model(self, n: int) -> None:
        del self.aside[n]


@pytest.mark.parametrize("num_parts", [1, 3])
def test_refinements_are_scored_under_a_steps_first_weights(
    num_parts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Loading must not depend on verl, which computes no log-probs with bypass_mode and so loads no weights later."""
    monkeypatch.setattr("transfer_queue.kv_batch_get", lambda **_: {"rollout_log_probs": None})
    monkeypatch.setattr("transfer_queue.kv_batch_put", lambda **_: None)
    trainer: Any = object.__new__(OnlineRefinerSeparateAsync)
    trainer.config = OmegaConf.create({"algorithm": {"rollout_correction": {"bypass_mode": True}}})
    trainer.blocks = SimpleNamespace(refines=True, measures_kl_by_actor=False)
    trainer.actor_rollout_wg, trainer.parameter_sync_step, trainer.timing_raw = Weights(), num_parts, {}
    trainer.run_dir, trainer.global_steps, trainer.total_training_steps = RunDir(tmp_path), 1, None
    actor, seen = trainer.actor_rollout_wg, []
    trainer.stages = SimpleNamespace(score_with_actor=lambda *_: seen.append(actor.now))
    for part in [*range(num_parts)] * 2:
        trainer.local_trigger_step, trainer.state = part, StepState(hook="_balance_batch", keys=KEYS)
        trainer._compute_old_log_prob(KVBatchMeta(keys=KEYS, tags=[{}, {}], partition_id="train"), metrics={})
        actor.now += 1
    assert seen == [0] * num_parts + [num_parts] * num_parts
    assert actor.now == 2 * num_parts, "no update is lost"
    assert actor.aside.keys() <= {0}


def test_a_prompt_may_say_how_many_rollouts_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer_queue.kv_batch_put", lambda **_: None)
    trainer: Any = object.__new__(OnlineRefinerSync)
    trainer.trainer_mode, trainer.global_steps, trainer.stages = "sync", 1, SimpleNamespace(num_sessions={})
    trainer.agent_loop_manager = SimpleNamespace(generate_sequences=lambda _: None)
    trainer._submit_batch_to_rollout(tu.get_tensordict({"uid": ["a", "b"]}))
    assert trainer.stages.num_sessions == {}
    for counts in ([3, 5], torch.tensor([3, 5])):
        trainer._submit_batch_to_rollout(tu.get_tensordict({"uid": ["c", "d"], "__rollout_n__": counts}))
        assert trainer.stages.num_sessions == {"c": 3, "d": 5}


class SaidOnce(PlayedSteps):
    """A reward function that says x in each mini-batch, y in the first alone, and z in both, which one leaves out."""

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> KVBatchMeta:
        batch = super()._step_once(metrics, timing_raw, sample_batch_size)
        metrics.update({"reward/extra/x": float(self.local_trigger_step), "other": 1.0})
        metrics.update({} if self.local_trigger_step else {"reward/extra/y": 1.0, "reward/extra/z": 1.0})
        said = {"x": 0, "z": 0} | ({} if self.local_trigger_step else {"y": 0})
        self.state.counts |= num_saying([said] * len(self.played[self.local_trigger_step]))
        self.state.metrics.update(metrics)
        return batch


def test_groups_that_are_filtered_while_gpus_are_lent_count_once(tmp_path: Path) -> None:
    """Verl waits there before the first mini-batch, and what it filters is in no mini-batch's metrics."""
    trainer: Any = object.__new__(OnlineRefinerSeparateAsync)
    trainer.parts, trainer.num_restarts, trainer.parameter_sync_step = [], 0, 2
    trainer.run_dir, trainer.global_steps, trainer.total_training_steps = RunDir(tmp_path), 1, None
    trainer.hybrid_rollout_config = SimpleNamespace(enable_switch=False)
    trainer._add_batch_to_generate = lambda: None
    trainer._wait_for_sampleable_and_switch = lambda: {DAPO_FILTERED_REWARD_COUNTS_KEY: {-1.0: 6}}
    trainer.prepare_step()
    for part in range(2):
        trainer.local_trigger_step = part
        trainer.on_sample_begin()
    assert [dict(part.filtered) for part in trainer.parts] == [{-1.0: 6}, {}]


def test_what_one_mini_batch_leaves_out_is_not_the_steps(make_stages: Any) -> None:
    metrics: dict[str, float] = {}
    SaidOnce(make_stages(), [[0.0], [0.0, 0.0, 0.0]]).step(metrics, {})
    assert (metrics["reward/extra/x"], metrics["other"]) == (0.75, 1.0)
    assert metrics["reward/extra/y"] == 1.0, "no response of the other mini-batch has it"
    assert "reward/extra/z" not in metrics
