"""The hosted refiner: frozen, exact, and a failure costs a refinement and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PROBE = Path(__file__).with_name("refiner_group_probe.py")


@pytest.mark.e2e
@pytest.mark.slow
def test_a_restart_on_a_lost_node_has_an_end(
    start_marked: Callable, tiny_llama: Path, own_ray: dict[str, str], tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    command = [str(PROBE.with_name("lost_node_probe.py")), str(tiny_llama), str(found)]
    job = start_marked(command, environment=own_ray, cwd=tmp_path)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    result = json.loads(found.read_text())
    assert "not there within 5 s" in result["why"] and result["left"] == []


@pytest.mark.e2e
@pytest.mark.slow
def test_refiner_group_answers_and_survives(start_marked: Callable, tiny_llama: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    config = REPOSITORY / "recipe" / "online_refiner" / "config"
    job = start_marked(
        ["-m", "recipe.cpu_platform.launch", str(PROBE), str(tiny_llama), str(config), str(output)],
        cwd=tmp_path,
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    result = json.loads(output.read_text())

    assert set(result["before"]) <= {"accepted", "not_better", "truncated", "empty"}
    assert "accepted" in result["before"]
    assert all(result["as_hugging_face"]), "speculative decoding changes nothing that is written"
    assert result["kl_difference"] < 1e-4
    assert result["spread_of_log_probs"] < 1e-5, "neither order nor the prefix cache changes them"
    assert result["staggered"] == [True] * 560, "requests that share a batch do not change each other"
    assert result["hurried"] == ["timeout"]
    assert result["num_given_up"] > 0, "a late request ends in the engine too"
    assert (result["left_behind"], result["left_of_the_other"]) == (100, 100)
    assert result["read_by_the_server"][0] == 1024
    assert result["read_by_the_server"][1].startswith("/dev/shm/verl-cache/")
    assert "no room to generate" in result["too_long_for_the_server"]
    assert result["alive_after_bad_requests"]
    assert "request" in result["killed"], "the refiner died too late for this test to show anything"
    assert result["num_restarts"] == 1
    assert all(result["same_after_restart"])
    assert result["orphans"] == []
    assert result["lost"] == ["request"]
    assert "no replica of the refiner is left: {0: 'it died 3 times before'}" in result["stopped"]
    assert result["num_left"] == 0
    assert result["without_replicas"] == ["request"]
    assert result["log_probs_without_replicas"] == [None]
