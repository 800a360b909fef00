"""Samples of refinements in verl's own tracking: real W&B (offline), TensorBoard, trackio and MLflow."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.utils.tracking import Tracking

from recipe.online_refiner.pairs import Pair, Verdict, choose_samples
from recipe.runs.samples import COLUMNS, NAME, log_samples

PAIRS = [
    Pair(reward=-1.0, verdict=Verdict.ACCEPTED, refined_reward=0.5),
    Pair(reward=-1.0, verdict=Verdict.TRUNCATED),
    Pair(reward=-1.0, verdict=Verdict.MAX_REWARD),  # nobody was asked
]


def record(row: int) -> dict[str, Any]:
    pair = PAIRS[row]
    texts = {"response": f"response {row}\n```", "refined": f"better {row}" if pair.is_accepted else None}
    rewards = {"reward": pair.reward, "refined_reward": pair.refined_reward if pair.is_accepted else None}
    prompt = [{"role": "user", "content": f"question {row}"}]
    return {"prompt": prompt, **texts, **rewards, "verdict": pair.verdict, "detail": "loop \ud800"}


def test_samples_reach_verls_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    tracking = Tracking("project", "run", ["console", "wandb", "tensorboard"], config={"trainer": {}})
    chosen = choose_samples(dict(enumerate(PAIRS)))
    log_samples(tracking.logger, 3, list(map(record, chosen)))
    log_samples(tracking.logger, 4, [])
    tracking.log({"reward/mean": 0.5}, step=4)
    tracking.finish()

    board = EventAccumulator(str(tmp_path / "board")).Reload()
    (event,) = board.Tensors(f"{NAME}/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "reward -1.000 → 0.500, accepted" in text and "    better 0" in text and "    response 0\n    ```" in text

    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/refiner/samples_*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"] == list(COLUMNS)
    assert content["data"][0] == ["question 0", "response 0\n```", "better 0", -1, 0.5, "accepted"]
    assert content["data"][1][2:] == ["loop \\ud800", -1, None, "truncated"]


def test_samples_reach_a_dashboard_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow's database needs more packages
    tracking = Tracking("project", "run", ["trackio", "mlflow"], config={"trainer": {}})
    assert set(tracking.logger) == {"trackio", "mlflow"}
    log_samples(tracking.logger, 3, list(map(record, choose_samples(dict(enumerate(PAIRS))))))
    log_samples(tracking.logger, 4, [])
    tracking.finish()

    (stored,) = (tmp_path / "mlflow").glob(f"*/*/artifacts/{NAME}/*.json")
    table = json.loads(stored.read_text())
    assert stored.stem == "000003" and table["columns"] == list(COLUMNS)
    assert table["data"][0] == ["question 0", "response 0\n```", "better 0", -1, 0.5, "accepted"]
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "project.db")) as database:
        ((step, text),) = database.execute("SELECT step, metrics FROM metrics").fetchall()
    first, second = json.loads(text)[NAME]["_value"]
    assert step == 3 and first == dict(zip(COLUMNS, table["data"][0], strict=True))
    assert second["refined"] == "loop \\ud800" and second["verdict"] == "truncated"
