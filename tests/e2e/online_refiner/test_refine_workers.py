"""Refine workers apart from a trainer: what they read and write, and what a death costs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
PROBE = Path(__file__).with_name("refine_workers_probe.py")


@pytest.fixture(scope="module")
def found(start_marked: Callable, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("workers")
    job = start_marked(
        ["-m", "recipe.cpu_platform.launch", str(PROBE), str(tiny_llama), str(folder / "found.json")], cwd=folder
    )
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    return json.loads((folder / "found.json").read_text())


def test_a_dead_worker_costs_its_rows_refinements_and_has_a_successor(found: dict[str, Any]) -> None:
    assert found["all"] == found["after"] == ["accepted"] * 8
    assert found["verdicts"] == ["accepted"] * 4 + ["worker"] * 4
    assert found["num_lost"] == 4
    assert found["aborts"] == [2], "its requests, one for the equal responses of each group"


def test_the_edit_distance_is_measured_where_the_tokens_are(found: dict[str, Any]) -> None:
    assert found["edit_distance"] == 2, "from abc to b"


def test_every_row_has_every_field_and_padding_acts_on_nothing(found: dict[str, Any]) -> None:
    *rows, padding = found["used"]
    assert sum(rows) == 4 and padding == 0
    assert found["used"] == found["used_by_tags"]
    assert found["refined"] == [[0], found["answer"]]


def test_log_pi_0_is_known_of_as_many_rows_as_asked(found: dict[str, Any]) -> None:
    assert len(found["log_probs"]) == 3
    assert {value for row in found["log_probs"] for value in row} == {-0.5}


def test_groups_are_handed_out_whole(found: dict[str, Any]) -> None:
    assert found["groups_apart"] == 0


def test_records_are_parts_by_step_and_worker(found: dict[str, Any]) -> None:
    steps = [name[:6] for name in found["files"]]
    assert steps == sorted(2 * [f"{step:06}" for step in (1, 2, 3, 4)])


def test_a_session_that_ends_with_the_output_of_a_tool_is_left_alone(found: dict[str, Any]) -> None:
    assert found["tool_output_last"] == ["no_turn"] * 8


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("several", "writes several rows for a session"),
        ("images", "images would not reach the refiner"),
        ("own_reward", "rewards its sessions itself"),
    ],
)
def test_rows_that_cannot_be_refined_end_the_run_with_what_to_set(
    kind: str, message: str, found: dict[str, Any]
) -> None:
    assert message in found["refusals"][kind]
    assert "set actor_rollout_ref.rollout.agent.default_agent_loop" in found["refusals"][kind]


def test_a_run_ends_with_what_died_even_where_it_waits_for_ever(found: dict[str, Any]) -> None:
    watched = found["watched"]
    assert "has died: the engine of server 1." in watched["engine"]
    assert "has died: loop 1 (" in watched["killed"] and "see the log above" in watched["killed"]
    assert "has died: loop 2 (" in watched["killed_and_fails"], "its own error follows from the death"
    assert watched["killed_and_fails"].endswith("<- ValueError('of its own')")


def test_a_refinement_is_scored_by_verls_own_request(found: dict[str, Any]) -> None:
    """The names are those that ``AgentLoopWorker._compute_score`` of verl sends."""
    request = found["request"]
    assert set(request) == {
        "data_source",
        "reward_model",
        "extra_info",
        "raw_prompt",
        "uid",
        "session_id",
        "__num_turns__",
        "tool_extra_fields",
        "prompt_len",
        "response_len",
    }
    assert request["__num_turns__"] == 2 and request["tool_extra_fields"] == {"from_loop": "x"}
    assert request["prompt_len"] == 2 and request["response_len"] == len(found["answer"])
    assert request["reward_model"] == {"ground_truth": "7"}
