"""A refiner on GPUs of its own refines each response while others are still being written, DAPO's filter included."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from recipe.smoke.letters import compute_score


@pytest.mark.e2e
@pytest.mark.slow
def test_a_dedicated_refiner_streams(train_letters: Callable, tmp_path: Path) -> None:
    """Also when its only replica is killed: that costs refinements, and no rollout and no step."""

    def kill(job: Any) -> None:
        job.wait_until((tmp_path / "run" / "metrics.jsonl").exists)
        (pid,) = re.findall(r"refiner replica 0: server process (\d+)", job.output())
        psutil.Process(int(pid)).kill()

    trained = train_letters(
        tmp_path,
        4,
        "refiner.placement=dedicated",
        "refiner.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=2",
        "refiner.template=dialogue",
        "refiner.max_refinements_per_group=3",
        "constraint.mode=penalty",
        "constraint.eta=0.1",
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=reward",
        "measure.cross_entropy_all_every=1",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        meanwhile=kill,
    )
    steps, rows = trained.steps, trained.refinements
    assert sum(step["refiner/num_restarts"] for step in steps) == 1
    assert all(step["reward/num_lost"] == 0 for step in steps)
    assert steps[0]["refiner/hidden_s"] > 0
    assert steps[0]["refiner/exposed_s"] < steps[0]["timing_s/step"]
    assert sum(step["refiner/num_accepted"] > 0 for step in steps) >= 2
    for step in steps:
        own = [row for row in rows if row["step"] == step["step"]]
        assert len(own) == step["refiner/num_rollouts"]
        groups: dict[str, list[dict]] = {}
        for row in own:
            groups.setdefault(row["key"].split("_")[0], []).append(row)
        for members in groups.values():
            assert len({row["reward"] for row in members}) > 1, "the filter takes groups of equal rewards away"
            skipped = [row["reward"] for row in members if row["verdict"] == "not_chosen"]
            assert len(skipped) == len(members) - 3
            assert min(skipped) >= max(row["reward"] for row in members if row["verdict"] != "not_chosen")
    for row in rows:
        assert row["reward"] == pytest.approx(compute_score("letters", row["response"], ""))
        if row["refined_reward"] is not None:
            assert row["refined_reward"] == pytest.approx(compute_score("letters", row["refined"], ""))
            assert (row["verdict"] == "accepted") == (row["refined_reward"] > row["reward"])
