"""The whole list of the GPU's jobs on the CPU platform, with jobs among them that hang, die, or outlast a call."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.gpu_quarter.jobs import JOBS
from experiments.gpu_quarter.learning import PAIR
from experiments.gpu_quarter.page import write_page
from experiments.gpu_quarter.runner import MARK

ROOT = Path(__file__).parents[3]


def quarter(output: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "experiments.gpu_quarter", "run", *arguments, "--rehearse", f"--output={output}"]
    return subprocess.run(command, cwd=ROOT).returncode


def results(output: Path) -> dict[str, dict[str, Any]]:
    files = [file for file in output.glob("*.json") if not file.name.endswith(".figures.json")]
    return {file.stem: json.loads(file.read_text()) for file in files}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_rehearsal_passes_and_bad_jobs_stop_nothing(tmp_path: Path) -> None:
    assert quarter(tmp_path, "overruns", "--seconds=45") == 1
    assert results(tmp_path)["overruns"]["state"] == "cut"
    assert quarter(tmp_path, "--seconds=6000") == 1
    found = results(tmp_path)
    assert {name: one["state"] for name, one in found.items()} == {
        **dict.fromkeys(JOBS, "passed"),
        "hangs": "hung",
        "dies": "failed",
        "overruns": "passed",
    }, {name: (one["faults"], one.get("log", [])[-20:]) for name, one in found.items() if one["state"] != "passed"}
    assert len(found["dies"]["log"]) == 200
    assert found["resume"]["figures"]["killed_after"] in ([1, 2], [1, 2, 3])
    assert max(found["eta-0"]["figures"]["differs"].values()) < 1e-4
    assert {"starting Ray", "loading the policy"} <= found["quickstart"]["figures"]["start"]["began_at_s"].keys()
    assert any(line.startswith("init engine") for line in found["quickstart-dynamic"]["figures"]["start"]["engines"])
    assert all(found[f"pair-{arm}"]["figures"]["line"]["held_out"].keys() == {"2"} for arm in PAIR)
    assert all(one["device"] == "CPU" and one["versions"]["verl"] for one in found.values())
    write_page(tmp_path, tmp_path / "gpu.md")
    assert "not run yet" not in (tmp_path / "gpu.md").read_text()
    assert not [*tmp_path.glob("*.running")]
    assert not left_by_jobs()


def left_by_jobs() -> list[psutil.Process]:
    left = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                left.append(process)
        except psutil.Error:
            continue
    return left
