"""Samples of refinements in verl's own tracking: real W&B (offline) and real TensorBoard."""

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.utils.tracking import Tracking

from recipe.online_refiner.pairs import Pair, Verdict
from recipe.online_refiner.stages import choose_samples
from recipe.online_refiner.step import StepState
from recipe.runs.samples import COLUMNS, NAME, log_samples

SKIPPED = Pair(reward=-1.0, verdict=Verdict.MAX_REWARD)
FAILED = Pair(reward=-1.0, verdict=Verdict.TRUNCATED, detail="loop \ud800")


def step(*pairs: Pair) -> StepState:
    return StepState(step=3, pairs=dict(enumerate(pairs)))


def accepted(reward: float) -> Pair:
    return Pair(reward=-1.0, verdict=Verdict.ACCEPTED, refined_reward=reward)


def records(state: StepState, rows: list[int]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"question {row}"}],
            "response": f"response {row}\n```",
            "refined": f"better {row}" if state.pairs[row].is_accepted else None,
            "reward": -1.0,
            "refined_reward": state.pairs[row].refined_reward if state.pairs[row].is_accepted else None,
            "verdict": state.pairs[row].verdict,
            "detail": state.pairs[row].detail,
        }
        for row in rows
    ]


def test_the_best_come_first_and_failures_are_shown() -> None:
    many = [accepted(reward / 10) for reward in range(10)]
    assert choose_samples(step(SKIPPED).pairs) == []
    assert choose_samples(step(*many).pairs) == [9, 8, 7, 6, 5, 4, 3, 2]
    assert choose_samples(step(*many, *[FAILED] * 6).pairs) == [9, 8, 7, 6, 10, 11, 12, 13]
    assert choose_samples(step(FAILED, many[0], SKIPPED, *[FAILED] * 9).pairs) == [1, 0, *range(3, 9)]


def test_samples_reach_verls_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    tracking = Tracking("project", "run", ["console", "wandb", "tensorboard"], config={"trainer": {}})
    refined = step(accepted(0.5), FAILED, SKIPPED)
    log_samples(tracking.logger, 3, records(refined, choose_samples(refined.pairs)))
    log_samples(tracking.logger, 4, [])
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
