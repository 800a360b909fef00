"""What GitHub runs, and when: both sets of tests, by the commands that are run by hand."""

from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]


def workflow(name: str) -> dict[Any, Any]:
    return yaml.safe_load((REPOSITORY / ".github" / "workflows" / name).read_text())


def commands(name: str) -> list[str]:
    return [step["run"] for job in workflow(name)["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_default_set_runs_for_every_change() -> None:
    assert commands("tests.yml") == [".ci/run"] and "scripts/test.sh" in (REPOSITORY / ".ci" / "run").read_text()
    assert {"push", "pull_request"} <= set(workflow("tests.yml")[True])  # `on` is true in YAML


def test_the_slow_set_runs_every_night_and_by_hand() -> None:
    assert commands("slow.yml") == ["bash scripts/test.sh slow"]
    assert set(workflow("slow.yml")[True]) == {"schedule", "workflow_dispatch"}
    assert len(workflow("slow.yml")[True]["schedule"][0]["cron"].split()) == 5
