"""Runs side by side: what ends them leaves nothing behind, and only what is complete counts."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import comes_true, is_alive

from experiments.lab import jobs

HANGS = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GRACE_S", 1.0)


def all_ends(folder: Path) -> bool:
    """Return whether all ends that the runs that hang have started, by their logs."""
    started = [int(log.read_text()) for log in folder.glob("*.log") if log.stat().st_size]
    return comes_true(lambda: not any(map(is_alive, started)))


def test_a_deadline_ends_what_is_running_and_nothing_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def minutes_by_running() -> float:
        return 60.0 * sum(log.stat().st_size > 0 for log in tmp_path.glob("*.log"))

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=minutes_by_running, sleep=time.sleep))
    runs = {name: ["x=1"] for name in "abc"}
    assert not jobs.run_all(runs, tmp_path, 3, parallel=2, minutes=2, prefix=[sys.executable, "-c", HANGS])
    assert capsys.readouterr().out.count("cut off, see ") == len(list(tmp_path.glob("*.log"))) == 2
    assert all_ends(tmp_path)


def test_an_interrupted_call_ends_its_runs(tmp_path: Path) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "metrics.jsonl").write_text(json.dumps({"step": 3}) + "\n")
    runs: dict[str, list[str]] = {"a": [], "done": [], "b": []}
    with pytest.raises(KeyboardInterrupt):
        jobs.run_all(runs, tmp_path, 3, parallel=2, prefix=[sys.executable, "-c", HANGS], on_complete=interrupt)
    assert len(list(tmp_path.glob("*.log"))) <= 2 and all_ends(tmp_path)


def test_what_is_complete_counts_and_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    done: list[str] = []
    for name, step in (("a", 3), ("b", 2), ("c", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps({"step": step}) + "\n")
    ways = {"is_done": lambda run_dir: run_dir.name != "c", "on_complete": done.append}
    assert not jobs.run_all(dict.fromkeys("abc", []), tmp_path, 3, prefix=["false"], **ways)
    said = capsys.readouterr().out.splitlines()
    assert done == ["a"] and [line.partition(" (")[0] for line in said] == [
        f"{name}: FAILED, see {tmp_path / name}.log" for name in "bc"
    ]
