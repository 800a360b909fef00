"""Samples of refinements in verl's own tracking: real W&B (offline), TensorBoard, trackio and MLflow."""

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.utils.tracking import Tracking

from recipe.online_refiner.method.pairs import Pair, Verdict, choose_shown, luck
from recipe.runs.tables import COLUMNS, MAX_TOKENS, REFINEMENTS, TOKENS, log_records

PAIRS = [
    Pair(reward=-1.0, verdict=Verdict.ACCEPTED, refined_reward=0.5),
    Pair(reward=-1.0, verdict=Verdict.TRUNCATED),
    Pair(reward=-1.0, verdict=Verdict.MAX_REWARD),  # nobody was asked
    Pair(reward=1.0, verdict=Verdict.OWN, refined_reward=1.0),  # nor here: it is imitated itself
]


def record(row: int) -> dict[str, Any]:
    pair = PAIRS[row]
    texts = {"response": f"response {row}\n```", "refined": f"better {row}" if pair.is_accepted else None}
    rewards = {"reward": pair.reward, "refined_reward": pair.refined_reward if pair.is_accepted else None}
    prompt = [{"role": "user", "content": f"question {row}"}]
    return {"key": f"{row}_0_0", "prompt": prompt, **texts, **rewards, "verdict": pair.verdict, "detail": "loop \ud800"}


OWN = {"tokens": ["a", "\ud800\n"], "log_probs": [-0.5, -2.25], "kept": [1, 0], "charged": [0.0, -1.5]}
REFINED = {"tokens": ["a"], "log_probs": None, "kept": [1], "weights": None}
TOKEN_RECORDS = [{"key": "0_0_0", "response": OWN, "refined": REFINED}]
TOKEN_ROWS = [
    ["0_0_0", "response", 0, "a", -0.5, 0.0, None, True],
    ["0_0_0", "response", 1, "\\ud800\n", -2.25, -1.5, None, False],
    ["0_0_0", "refined", 0, "a", None, None, None, True],
]


def test_samples_that_are_alike_are_chosen_by_lot() -> None:
    """Rows are in the order of lengths, so the first ones of a kind would be the shortest."""
    verdicts = [Verdict.ACCEPTED, Verdict.NOT_BETTER, Verdict.TRUNCATED]
    pairs = {row: Pair(reward=-1.0, verdict=verdicts[row % 3], refined_reward=1.0) for row in range(96)}
    seen = [choose_shown(pairs, {row: luck(step, f"u_{row}_0") for row in pairs}) for step in range(64)]
    assert all(len(one) == 8 and sum(pairs[row].is_accepted for row in one) == 4 for one in seen)
    assert sum(row < 48 for one in seen for row in one) / 512 == pytest.approx(0.5, abs=0.08)


def test_samples_reach_verls_tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "board"))
    tracking = Tracking("project", "run", ["console", "wandb", "tensorboard"], config={"trainer": {}})
    chosen = choose_shown(dict(enumerate(PAIRS)), dict.fromkeys(range(len(PAIRS)), 0.5))
    log_records(tracking.logger, 3, list(map(record, chosen)), TOKEN_RECORDS)
    log_records(tracking.logger, 4, [], [])
    tracking.log({"reward/mean": 0.5}, step=4)
    tracking.finish()

    board = EventAccumulator(str(tmp_path / "board")).Reload()
    (event,) = board.Tensors(f"{REFINEMENTS}/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3
    assert "**refined reward**\n\n    0.5\n" in text and "    better 0" in text and "    response 0\n    ```" in text

    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/refiner/samples_*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"] == list(COLUMNS[REFINEMENTS])
    assert content["data"][0] == ["question 0", "response 0\n```", "better 0", -1, 0.5, "accepted", "0_0_0"]
    assert content["data"][1][2:] == ["loop \\ud800", -1, None, "truncated", "1_0_0"]

    (event,) = board.Tensors(f"{TOKENS}/text_summary")
    lines = event.tensor_proto.string_val[0].decode().splitlines()
    assert [line.split() for line in lines][:2] == [
        ["key", "text", "place", "token", "log", "prob", "charged", "weight", "kept"],
        ["0_0_0", "response", "0", "'a'", "-0.5", "0.0", "None", "True"],
    ]
    (table,) = (tmp_path / "wandb").glob("offline-run-*/files/media/table/refiner/tokens_*.table.json")
    assert json.loads(table.read_text()) | {"ncols": 8, "nrows": 3} == {
        "columns": list(COLUMNS[TOKENS]),
        "data": TOKEN_ROWS,
        "ncols": 8,
        "nrows": 3,
    }


def test_samples_reach_a_dashboard_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow's database needs more packages
    tracking = Tracking("project", "run", ["trackio", "mlflow"], config={"trainer": {}})
    assert set(tracking.logger) == {"trackio", "mlflow"}
    many = {"key": "1_0_0", "response": {name: values * MAX_TOKENS for name, values in OWN.items()}, "refined": None}
    samples = list(map(record, choose_shown(dict(enumerate(PAIRS)), dict.fromkeys(range(len(PAIRS)), 0.5))))
    log_records(tracking.logger, 3, samples, [*TOKEN_RECORDS, many])
    log_records(tracking.logger, 4, [], [])
    tracking.finish()

    (stored,) = (tmp_path / "mlflow").glob(f"*/*/artifacts/{REFINEMENTS}/*.json")
    table = json.loads(stored.read_text())
    assert stored.stem == "000003" and table["columns"] == list(COLUMNS[REFINEMENTS])
    assert table["data"][0] == ["question 0", "response 0\n```", "better 0", -1, 0.5, "accepted", "0_0_0"]
    (stored,) = (tmp_path / "mlflow").glob(f"*/*/artifacts/{TOKENS}/*.json")
    tokens = json.loads(stored.read_text())["data"]
    assert tokens[:3] == TOKEN_ROWS and len(tokens) == MAX_TOKENS
    with contextlib.closing(sqlite3.connect(tmp_path / "trackio" / "project.db")) as database:
        logged = database.execute("SELECT step, metrics FROM metrics").fetchall()
    assert {step for step, _ in logged} == {3}
    tables = {name: value["_value"] for _, text in logged for name, value in json.loads(text).items()}
    first, second = tables[REFINEMENTS]
    assert first == dict(zip(COLUMNS[REFINEMENTS], table["data"][0], strict=True))
    assert second["refined"] == "loop \\ud800" and second["verdict"] == "truncated"
    assert tables[TOKENS][:3] == [dict(zip(COLUMNS[TOKENS], row, strict=True)) for row in TOKEN_ROWS]
