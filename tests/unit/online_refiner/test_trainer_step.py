"""What the trainer does beside the charges: who is awake when, which seconds are whose, and what is measured."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import own_queue
import pytest
import torch
import transfer_queue as tq
from played_actor import log_probs
from played_step import (
    KEYS,
    MASKS,
    PROMPTS,
    RESPONSES,
    REWARDS,
    Trainer,
    Turns,
    at_temperature,
    columns_of,
    refined_rows,
)
from transfer_queue import KVBatchMeta

from recipe.online_refiner.method.pairs import Pair, Verdict
from recipe.online_refiner.verl_glue import rows
from recipe.online_refiner.verl_glue.rows import TAG


@pytest.fixture(scope="module", autouse=True)
def queue() -> Iterator[None]:
    with own_queue.serving():
        yield


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("{x: {skip_reward_at_least: 0.5}, y: {max_refinements_per_group: 1}}", {"a_1_0", "b_0_0"}),
        ("{x: {skip_reward_at_least: 0.5, only_unsolved: true}, y: {}}", {"a_0_0", "a_1_0"}),
        ("null constraint.by_source={y: {eta: 0}}", {"b_0_0", "b_1_0"}),
    ],
)
def test_a_data_source_has_its_own_maximum_and_limit_in_the_budget(own: str, expected: set[str]) -> None:
    """One row of x is solved; of two others the lower one goes first; a source without a weight has no place."""
    overrides = f"refiner.by_source={own}".replace("null ", "null\n").splitlines()
    trainer = Trainer("constraint.mode=sft", "refiner.budget=0.9", *overrides)
    left_out = set[str]()

    def record(step: int, part: int, batch: KVBatchMeta, samples: set[str]) -> None:
        left_out.update(key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag[rows.OVER_BUDGET])

    trainer.workers.record = record  # type: ignore[assignment,method-assign]
    trainer.take(refined_rows(data_source=["x", "x", "y", "y"]))
    assert left_out == expected


def test_a_checkpoint_that_lacks_what_was_learned_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stages = Trainer("constraint.mode=sft", "refiner.budget=0.5").stages
    stages.load(tmp_path / "global_step_0")
    assert caplog.messages == [], "a new run"
    stages.load(tmp_path)
    assert len(caplog.messages) == 1


def test_the_refiner_is_awake_once_a_step() -> None:
    trainer = Trainer("constraint.mode=sft")
    trainer.rollout_gb = 7.0
    trainer.take(refined_rows())
    assert trainer.group.told == ["wake", "sleep"]
    found = trainer.state.metrics
    assert (found["refiner/num_restarts"], found["refiner/num_replicas"]) == (1, 2)
    assert (found["memory_gb/rollout"], found["memory_gb/asleep"]) == (7.0, 0.0)
    assert "memory_gb/refine" not in found, "its servers are elsewhere"


def test_a_row_whose_worker_died_is_a_plain_response() -> None:
    trainer = Trainer("constraint.mode=penalty")
    column = columns_of(trainer.take(refined_rows(lost=1)))
    recorded = trainer.workers.recorded
    assert {key: pair.verdict for key, pair in recorded.items()} == {
        "a_0_0": "accepted",
        "a_1_0": "worker",
        "b_0_0": "not_better",
        "b_1_0": "accepted",
    }
    assert recorded["a_1_0"].reward == REWARDS[1]
    assert column("advantages")["a_1_0"] == [(REWARDS[1] - REWARDS[0]) / 2] * 4, "it pays nothing"
    assert (column("refine_used")["a_1_0"], column("refine_mask")["a_1_0"]) == (0, [0])


NAMES = ("verdict", "source")


def measured(most: int) -> tuple[str, str]:
    """Return what lets replicas measure the KL of so many rollouts: their log-probs are at temperature 1."""
    return f"measure.num_kl_rollouts={most}", "actor_rollout_ref.rollout.temperature=1"


def test_the_driver_reads_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads neither texts nor their ids, also in a step in which one row is not refined yet."""
    trainer, batch, read = Trainer("constraint.mode=penalty", *measured(4)), refined_rows(lost=1), {}
    trainer.workers.reference = dict(zip(KEYS, [[-1.0] * len(ids) for ids in RESPONSES], strict=True))

    def seen(**arguments: Any) -> Any:
        found = tq.kv_batch_get(**arguments)
        read.update(found.items())
        return found

    monkeypatch.setattr(rows, "tq", SimpleNamespace(**{**vars(tq), "kv_batch_get": seen}))
    columns_of(trainer.take(batch))
    assert {"rm_scores", "refine_charged", "kl_ref_log_prob"} <= read.keys()
    assert all(isinstance(values, torch.Tensor) for values in read.values())
    assert not read.keys() & {"prompts", "responses", "input_ids", "refine_ids"}
    said = [json.loads(tag[TAG]) for tag in trainer.rows.tags]
    numbers = (int, float, bool, type(None), dict)
    assert all(isinstance(value, numbers) for one in said for name, value in one.items() if name not in NAMES)


def test_rows_of_a_checkpoint_that_another_constraint_refined_are_plain_responses() -> None:
    """They lack what pi_0 says of them in place, for which their tags ask."""
    of_pairs = {"own": [{"is_scored": True}] * 4}
    in_place = ["constraint.target=in_place", "actor_rollout_ref.rollout.temperature=1"]
    trainer = Trainer("constraint.mode=penalty", *in_place)
    column = columns_of(trainer.take(refined_rows(of_pairs=of_pairs)))
    assert {pair.verdict for pair in trainer.workers.recorded.values()} == {"worker"}
    assert not any(column("refine_used").values()) and trainer.state.metrics["constraint/in_place_responses"] == 0


def test_a_pair_comes_to_the_driver_by_its_rows_tag() -> None:
    trainer, told = Trainer("constraint.mode=penalty"), Pair(reward=0.5, verdict=Verdict.TOO_LONG, latency_s=1.5)

    def refine(asked: Any, *_: Any) -> None:
        tags = [rows.with_pair({}, told) for _ in asked.keys]
        tq.kv_batch_put(keys=asked.keys, partition_id=asked.partition_id, tags=tags)

    trainer.workers.refine = refine
    batch = trainer.take(refined_rows(lost=1))
    row = batch.keys.index("a_1_0")
    assert (trainer.state.pairs[row], trainer.workers.recorded["a_1_0"]) == (told, told)
    assert {"response_len", "seq_len"} <= batch.tags[row].keys()
    assert trainer.state.metrics["refiner/skipped/too_long"] == 1


def test_a_streaming_run_counts_the_replicas_that_were_started_again_before_its_step() -> None:
    trainer = Trainer("constraint.mode=sft", "refiner.placement=dedicated", "refiner.n_gpus_per_node=1")
    trainer.num_restarts = 3
    trainer.take(refined_rows())
    assert trainer.group.told == ["sleep"], "its workers have it already"
    assert (trainer.state.metrics["refiner/num_restarts"], trainer.num_restarts) == (3, 0)


@pytest.mark.parametrize(("handles", "expected"), [(None, ["wake", "sleep"]), ([], [])])
def test_a_colocated_reward_model_is_awake_while_refinements_are_scored(handles: Any, expected: list[str]) -> None:
    trainer, model = Trainer("constraint.mode=sft"), Turns()
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=handles, reward_model_manager=model)
    trainer.take(refined_rows())
    assert model.told == expected


def test_seconds_of_stages_within_verls_are_taken_out_of_verls() -> None:
    began = 4e9  # later than the trainer: what a killed run has refined does not count
    trainer = Trainer("constraint.mode=penalty")
    of_pairs = {"started_at": [began, began + 3, began, began], "refined_at": [began + 8.5] * 4}
    trainer.take(refined_rows(of_pairs=of_pairs))
    seconds, found = trainer.timing_raw, trainer.state.metrics
    assert seconds["refine_log_prob"] == -seconds["old_log_prob"] > 0
    assert seconds["wait_refiner"] == found["timing_s/wait_refiner"] == 5.5
    assert found["refiner/exposed_s"] == seconds["refine"] + 5.5
    assert found["refiner/hidden_s"] == 3.0


def k3(rows: list[int], reference: dict[int, list[float]], temperature: float) -> float:
    """Return the mean of exp(d) - 1 - d over the policy's tokens of some rows."""
    found = []
    for row in rows:
        own = at_temperature(log_probs(PROMPTS[row], RESPONSES[row]), temperature)
        for there, here, is_own in zip(reference[row], own, MASKS[row], strict=True):
            found += [math.exp(there - here) - 1 - (there - here)] * is_own
    return sum(found) / len(found)


def test_the_kl_is_measured_where_a_replica_answered() -> None:
    trainer = Trainer("constraint.mode=sft", *measured(4))
    reference = {row: [-0.25 * t for t in range(len(ids))] for row, ids in enumerate(RESPONSES)}
    known = [0, 2, 3]
    trainer.workers.reference = {KEYS[row]: reference[row] for row in known}
    trainer.take(refined_rows())
    assert sorted(trainer.workers.scored) == KEYS, "padding is not asked about"
    assert trainer.state.metrics["kl_ref/k3"] == pytest.approx(k3(known, reference, temperature=1), rel=1e-5)
    assert trainer.state.metrics["tokens/kl_ref"] == sum(len(RESPONSES[row]) for row in known)


def test_a_mini_batch_measures_its_share_of_a_step() -> None:
    trainer = Trainer("constraint.mode=sft", *measured(3))
    trainer.parameter_sync_step = 2
    trainer.workers.reference = dict(zip(KEYS, [[-1.0] * len(ids) for ids in RESPONSES], strict=True))
    trainer.take(refined_rows())
    assert len({*trainer.workers.scored} & {*KEYS}) == len(trainer.workers.scored) == 2


def test_the_kl_to_the_actor_without_its_adapter_leaves_the_adapter_on() -> None:
    shared = ["refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8", "measure.num_kl_rollouts=1"]
    trainer = Trainer("constraint.mode=sft", *shared)
    trainer.ref_in_actor = True
    trainer.take(refined_rows())
    pairs = zip(PROMPTS, RESPONSES, strict=True)
    reference = [at_temperature(log_probs(prompt, ids, is_reference=True)) for prompt, ids in pairs]
    assert trainer.state.metrics["kl_ref/k3"] == pytest.approx(
        k3([*range(4)], dict(enumerate(reference)), temperature=0.5), rel=1e-5
    )
    assert not any("no_lora_adapter" in said for said in trainer.said)
    assert trainer.timing_raw["kl_ref"] > 0


@pytest.mark.parametrize(
    ("saved", "step", "is_due"),
    [
        ({"reward/mean": 1.0}, 4, True),
        ({"reward/mean": 1.0}, 3, False),
        ({"reward/mean": 1.0}, 9, True),  # the last step is validated whenever it is
        ({"reward/mean": 1.0, "val-core/acc": 0.5}, 4, False),
        ({}, 4, False),
    ],
)
def test_a_validation_that_a_kill_cut_off_is_made_up_for(saved: dict[str, float], step: int, is_due: bool) -> None:
    trainer = Trainer("trainer.test_freq=2", "trainer.val_before_train=false")
    trainer.saved, trainer.global_steps, trainer.total_training_steps = saved, step, 9
    trainer._validate_if_missed()
    assert trainer.config.trainer.val_before_train is is_due


def test_eta_goes_on_from_the_checkpoint_that_the_run_resumes_from() -> None:
    paths = ["trainer.default_local_dir=own", "trainer.resume_from_path=others/global_step_7"]
    for mode, resumed in (("auto", "own/global_step_2"), ("resume_path", "others/global_step_7")):
        trainer = Trainer(f"trainer.resume_mode={mode}", *paths)
        assert str(trainer._resumed_folder()) == resumed
        assert str(trainer._checkpoint_folder()) == "own/global_step_2"
