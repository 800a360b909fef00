"""Replicas of the refiner on every node of a Ray cluster: two raylets on this machine."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.online_refiner.metrics import MEANING
from recipe.runs.files import read_rows


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.alone  # two nodes share no preloaded process: 17 GB
def test_each_node_hosts_a_replica(
    start_marked: Callable, letters_job: list[str], own_ray: dict[str, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    job = start_marked(
        [
            *(str(Path(__file__).with_name("two_nodes.py")), f"run_dir={run_dir}", *letters_job),
            *("trainer.nnodes=2", "trainer.n_gpus_per_node=1", "refiner.template=dialogue", "refiner.draft=ngram"),
            *("trainer.total_training_steps=2", "trainer.save_freq=-1"),
        ],
        environment=own_ray,
        cwd=tmp_path,
    )
    assert job.wait(900) == 0, job.output()[-6000:]
    assert job.survivors() == []

    places = re.findall(r"refiner replica (\d): server process \d+ on node (\w+)", job.output())
    assert {replica for replica, _ in places} == {"0", "1"}
    assert len({node for _, node in places}) == 2
    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert [step["step"] for step in steps] == [1, 2]
    assert all(name in step for step in steps for name in MEANING)
    assert all(step["refiner/num_accepted"] > 0 for step in steps)
    assert all(step["refiner/drafted_tokens"] > 0 for step in steps)
