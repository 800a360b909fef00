"""A refiner that differs by data source in whole jobs: one source's server dies and is back, a resume, streaming."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from played_server import Reply, Server, chat, serving

NUM_OF_SOURCE = 8
"""Rollouts of each source in a step: two prompts, of four responses each."""
NUM_STEPS, NUM_MORE = 6, 2
DIES_AT, IS_BACK_BEHIND = 2, 3
NUM_PROBES_BEFORE = 1
"""Before the first step's: by the checks."""
SOURCES = {"programs": {"template": "apps"}, "open/sums": {"template": "math", "request_timeout_s": 3}}


def two_sources(letter_prompts: Path, folder: Path) -> Path:
    """Write the prompts again, every second one as of another source, and return the file."""
    rows = pandas.read_parquet(letter_prompts)
    rows["data_source"] = [list(SOURCES)[n % 2] for n in range(len(rows))]
    rows.to_parquet(folder / "two.parquet")
    return folder / "two.parquet"


def written(by_source: dict[str, dict[str, Any]]) -> str:
    """Return the override that says what differs by source."""
    own = [f"{one}:{{{','.join(f'{key}:{value}' for key, value in of.items())}}}" for one, of in by_source.items()]
    return f"refiner.by_source={{{','.join(own)}}}"


@pytest.mark.e2e
@pytest.mark.slow
def test_a_streaming_refiner_goes_by_the_data_source(
    train_letters: Callable, letter_prompts: Path, tmp_path: Path
) -> None:
    """No engine but the policy's: the common refiner and that of a source are servers, told apart by their answers."""
    answers = {"programs": "abcdz", "open/sums": "abcz"}
    with serving(lambda *_: chat(answers["programs"])) as common, serving(lambda *_: chat(answers["open/sums"])) as own:
        differs = SOURCES | {"open/sums": {**SOURCES["open/sums"], "url": f"'{own.url}'", "skip_reward_at_least": 0.9}}
        trained = train_letters(
            tmp_path,
            2,
            f"data.train_files={two_sources(letter_prompts, tmp_path)}",
            "data.shuffle=False",
            "refiner.placement=external",
            f"refiner.url={common.url}",
            written(differs),
            "constraint.mode=penalty",
            "measure.num_kl_rollouts=0",
        )
        asked = {"programs": common.bodies, "open/sums": own.bodies}
    for step in trained.steps:
        assert step["refiner/num_replicas"] == 2 and step["refiner/hidden_s"] > 0, "during the rollout"
        ratios = [step[f"refiner/source_improvement_ratio/{source}"] for source in SOURCES]
        assert sum(ratios) / 2 == pytest.approx(step["refiner/improvement_ratio"]) and min(ratios) > 0
        assert all(step[f"refiner/source_failed_ratio/{source}"] == 0 for source in SOURCES)
    for source, bodies in asked.items():
        messages = [body["messages"][-1]["content"] for body in bodies]
        messages = [message for message in messages if message != "Say yes."]  # which the checks before a start say
        rows = [row for row in trained.refinements if row["data_source"] == source and row["refined"] is not None]
        alike = {(row["step"], row["prompt"][0]["content"], row["response"]) for row in rows}  # which ask once
        assert len(alike) == len(messages) > 0 and {row["refined"] for row in rows} == {answers[source]}
        assert {"Here is the problem again:" in message for message in messages} == {source == "open/sums"}
    skipped = {row["data_source"] for row in trained.refinements if row["verdict"] == "max_reward"}
    assert skipped <= {"open/sums"}


@pytest.mark.e2e
@pytest.mark.slow
def test_one_sources_server_dies_and_is_back(
    train_letters: Callable, letter_prompts: Path, own_ray: dict[str, str], tmp_path: Path
) -> None:
    """It costs refinements of that source alone; the other one has the engine beside the policy."""
    metrics, is_dying, servers = tmp_path / "run" / "metrics.jsonl", threading.Lock(), list[Server]()

    def answer(message: str, num_before: int) -> Reply:
        if server.num_probes >= NUM_PROBES_BEFORE + DIES_AT:
            if is_dying.acquire(blocking=False):
                server.end()
            return Reply(hangs=True)
        return chat("abcdz")

    def bring_back(job: Any) -> None:
        job.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") >= IS_BACK_BEHIND)
        servers.append(Server(lambda message, num_before: chat("abcdz"), port=server.server_address[1]))

    server, file = Server(answer), two_sources(letter_prompts, tmp_path)
    own = SOURCES | {"open/sums": {**SOURCES["open/sums"], "url": f"'{server.url}'"}}
    overrides = [
        f"data.train_files={file}",
        "data.shuffle=False",  # each step has both sources
        written(own),
        "constraint.mode=penalty",
        "constraint.eta=0.1",
        "measure.num_kl_rollouts=4",
        "actor_rollout_ref.actor.optim.lr=5e-4",  # at the task's own rate nothing is left to refine
        f"trainer.save_freq={NUM_STEPS}",
    ]
    trained = train_letters(tmp_path, NUM_STEPS, *overrides, meanwhile=bring_back, environment=own_ray)
    before, dying, dead, last = (trained.steps[n] for n in (0, DIES_AT - 1, IS_BACK_BEHIND - 1, NUM_STEPS - 1))
    for step in trained.steps:
        assert (
            step["refiner/source_improvement_ratio/programs"] > 0 and step["refiner/source_failed_ratio/programs"] == 0
        )
        assert step["constraint/penalty"] < 0 and step["kl_ref/k3"] >= 0
    for step in (before, last):
        assert step["refiner/num_replicas"] == 2
        assert (
            step["refiner/source_improvement_ratio/open/sums"] > 0
            and step["refiner/source_failed_ratio/open/sums"] == 0
        )
    for step in (dying, dead):
        assert (
            step["refiner/source_improvement_ratio/open/sums"] == 0
            and step["refiner/source_failed_ratio/open/sums"] == 1
        )
        assert step["refiner/failed/request"] + step["refiner/failed/timeout"] == NUM_OF_SOURCE
    assert (dying["refiner/num_replicas"], dead["refiner/num_replicas"]) == (2, 1)
    assert not server.keys - {"Bearer none"}
    again = train_letters(tmp_path, NUM_STEPS + NUM_MORE, *overrides, environment=own_ray)
    assert f"global_step_{NUM_STEPS}" in again.output
    for step in again.steps[NUM_STEPS:]:
        assert all(step[f"refiner/source_improvement_ratio/{source}"] > 0 for source in SOURCES)
    (back,) = servers
    back.end()
    messages = [body["messages"][-1]["content"] for body in [*server.bodies, *back.bodies]]
    asked = [message for message in messages if message != "Say yes."]  # which the checks before a start say
    numbers = [int(message.split("Write ")[-1].split()[0]) for message in asked]
    assert all("Here is the problem again:" in message for message in asked), "which the template math asks"
    assert {n % 2 for n in numbers} == {1} and len(asked) > NUM_OF_SOURCE, "the other source's rows are not sent"
