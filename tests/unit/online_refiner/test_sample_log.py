"""Samples of refinements in verl's own tracking: real W&B (offline) and real TensorBoard."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.utils.tracking import Tracking

from recipe.online_refiner.refine_stage import Refinement, Rollout, StageResult
from recipe.online_refiner.sample_log import COLUMNS, NAME, NUM_SAMPLES, choose_samples, log_samples

SKIPPED = Refinement(verdict="max_reward")
FAILED = Refinement(verdict="truncated", text="loop \ud800")


def result(*refinements: Refinement) -> StageResult:
    rollouts = [
        Rollout(
            key=str(n),
            group="g",
            messages=[{"role": "user", "content": f"question {n}"}],
            prompt_ids=[1],
            response_ids=[2],
            reward=-1.0,
            sample={},
        )
        for n in range(len(refinements))
    ]
    responses = [f"response {n}\n```" for n in range(len(refinements))]
    return StageResult(rollouts=rollouts, refinements=list(refinements), responses=responses)


def accepted(reward: float) -> Refinement:
    return Refinement(verdict="accepted", token_ids=[3], text=f"better {reward}", reward=reward)


def test_the_best_come_first_and_failures_are_shown() -> None:
    many = [accepted(reward / 10) for reward in range(10)]
    assert choose_samples(result(SKIPPED)) == []
    assert [sample[4] for sample in choose_samples(result(*many))] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    verdicts = [sample[5] for sample in choose_samples(result(*many, *[FAILED] * 6))]
    assert verdicts == ["accepted"] * (NUM_SAMPLES // 2) + ["truncated"] * (NUM_SAMPLES // 2)
    verdicts = [sample[5] for sample in choose_samples(result(FAILED, many[0], SKIPPED, *[FAILED] * 9))]
    assert verdicts == ["accepted"] + ["truncated"] * (NUM_SAMPLES - 1)


def test_samples_reach_verls_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    tracking = Tracking("project", "run", ["console", "wandb", "tensorboard"], config={"trainer": {}})
    log_samples(tracking.logger, 3, result(accepted(0.5), FAILED, SKIPPED))
    log_samples(tracking.logger, 4, result(SKIPPED))
    tracking.log({"reward/mean": 0.5}, step=4)
    tracking.finish()

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [event.value for event in board.Scalars("reward/mean")] == [0.5]
    (event,) = board.Tensors(f"{NAME}/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "reward -1.000 → 0.500, accepted" in text and "    better 0.5" in text and "    response 0\n    ```" in text

    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/refiner/samples_*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"] == list(COLUMNS)
    assert content["data"][0] == ["question 0", "response 0\n```", "better 0.5", -1, 0.5, "accepted"]
    assert content["data"][1][2:] == ["loop \\ud800", -1, None, "truncated"]
