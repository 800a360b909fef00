"""Samples of refinements in verl's own tracking: real W&B (offline) and real TensorBoard."""

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.utils.tracking import Tracking

from recipe.online_refiner.rollout import Outcome
from recipe.online_refiner.sample_log import COLUMNS, NAME, NUM_SAMPLES, choose_samples, log_samples
from recipe.online_refiner.step import StepState

SKIPPED = Outcome(verdict="max_reward")
FAILED = Outcome(verdict="truncated", detail="loop \ud800")


def step(*outcomes: Outcome, number: int = 3) -> StepState:
    rows = range(len(outcomes))
    return StepState(step=number, rewards=dict.fromkeys(rows, -1.0), outcomes=dict(zip(rows, outcomes, strict=True)))


def accepted(reward: float) -> Outcome:
    return Outcome(verdict="accepted", refined_reward=reward)


def records(state: StepState, rows: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"question {row}"}],
            "response": f"response {row}\n```",
            "refined": f"better {row}" if state.outcomes[row].verdict == "accepted" else None,
            "reward": -1.0,
            "refined_reward": state.outcomes[row].refined_reward if state.outcomes[row].is_scored else None,
            "verdict": state.outcomes[row].verdict,
            "detail": state.outcomes[row].detail,
        }
        for row in rows
    ]


def test_the_best_come_first_and_failures_are_shown() -> None:
    many = [accepted(reward / 10) for reward in range(10)]
    assert choose_samples(step(SKIPPED)) == []
    assert choose_samples(step(*many)) == [9, 8, 7, 6, 5, 4, 3, 2]
    assert choose_samples(step(*many, *[FAILED] * 6)) == [9, 8, 7, 6, 10, 11, 12, 13]
    assert choose_samples(step(FAILED, many[0], SKIPPED, *[FAILED] * 9)) == [1, 0, *range(3, 9)]
    assert NUM_SAMPLES == 8


def test_samples_reach_verls_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    tracking = Tracking("project", "run", ["console", "wandb", "tensorboard"], config={"trainer": {}})
    refined = step(accepted(0.5), FAILED, SKIPPED)
    log_samples(tracking.logger, refined, lambda rows: records(refined, rows))
    log_samples(tracking.logger, step(SKIPPED, number=4), lambda rows: pytest.fail("nothing is read"))
    tracking.log({"reward/mean": 0.5}, step=4)
    tracking.finish()

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [event.value for event in board.Scalars("reward/mean")] == [0.5]
    (event,) = board.Tensors(f"{NAME}/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "reward -1.000 → 0.500, accepted" in text and "    better 0" in text and "    response 0\n    ```" in text

    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/refiner/samples_*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"] == list(COLUMNS)
    assert content["data"][0] == ["question 0", "response 0\n```", "better 0", -1, 0.5, "accepted"]
    assert content["data"][1][2:] == ["loop \\ud800", -1, None, "truncated"]
