"""Workers that are forks of one preloaded process behave as plain ones, whichever process is killed."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.cpu_platform import ENVIRONMENT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # whole jobs show the deaths too: test_modes.py, test_main_job.py
PROBE = str(Path(__file__).with_name("preload_probe.py"))
LAUNCHER = ("-m", "recipe.cpu_platform.launch")


@pytest.fixture(scope="session")  # as long as what is looked at last
def jobs(start_marked: Callable, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run three jobs: two preloaded ones at the same time, of which one's driver is killed, and a plain one."""
    folder = tmp_path_factory.mktemp("preload")
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "2"}
    waiting = start_marked([*LAUNCHER, PROBE, f"{folder}/waiting.json", "wait"], cwd=folder, environment=environment)
    forked = start_marked([*LAUNCHER, PROBE, f"{folder}/forked.json", "death"], cwd=folder, environment=environment)
    waiting.wait_until((folder / "waiting.json").exists)
    assert waiting.process.poll() is None
    os.kill(waiting.process.pid, signal.SIGKILL)
    waiting.process.wait()
    left = waiting.survivors(agents=False)
    assert forked.wait() == 0, forked.output()[-6000:]
    plain = start_marked([PROBE, f"{folder}/plain.json", "facts"], cwd=folder, environment=environment)
    assert plain.wait() == 0, plain.output()[-6000:]
    found = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return {**found, "job": forked, "killed_job": waiting, "left": left}


def test_a_forked_worker_is_like_a_plain_one(jobs: dict[str, Any]) -> None:
    (plain, _), forked = jobs["plain"]["facts"], jobs["forked"]["facts"]
    assert not plain["has_imported_vllm"]
    for worker in forked:
        assert worker["has_imported_vllm"]
        assert worker["alike"] == plain["alike"]
    assert len({number for worker in forked for number in worker["random"]}) == 8


def test_children_of_a_worker_end_as_they_say(jobs: dict[str, Any]) -> None:
    expected = [0, 7, -signal.SIGABRT, -signal.SIGTERM]
    assert jobs["plain"]["children"] == jobs["forked"]["children"] == expected


def test_the_death_of_the_preloaded_process_costs_time_only(jobs: dict[str, Any]) -> None:
    forked = jobs["forked"]
    assert forked["goes_on_without_server"]
    assert not forked["after_server"]["has_imported_vllm"]
    assert "Workers that start from now on import their packages themselves" in jobs["job"].output()
    assert jobs["job"].survivors() == []  # on a busy machine Ray's agents may have to see that their node is gone


def test_two_jobs_do_not_meet_and_a_killed_driver_leaves_rays_agents_only(jobs: dict[str, Any]) -> None:
    assert all(worker["has_imported_vllm"] for worker in jobs["waiting"]["facts"])
    assert jobs["left"] == []


@pytest.mark.last
def test_rays_agents_end_as_well(jobs: dict[str, Any]) -> None:
    assert jobs["killed_job"].survivors() == []  # they see after a minute that their node is gone
