"""Whole jobs with ``constraint.target=in_place``; what their numbers are, test_modes.py says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.runs.files import read_rows

NUM_STEPS = 2
DEDICATED = ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"]
JOBS = {
    "streaming": ["constraint.target=in_place", *DEDICATED],
    "failed": ["constraint.target=in_place", "constraint.reward_gate=failed", "refiner.skip_reward_at_least=0.5"],
    "static KL": ["control=static_kl"],
    "another problem": ["control=in_place_other"],
    "constant": ["control=in_place_constant"],
}
DECODES = ("streaming", "another problem", "constant")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_job_charges_in_place(name: str, start_marked: Callable, letters_job: list[str], tmp_path: Path) -> None:
    job = start_marked(
        [
            *("-m", "recipe.online_refiner.main", "platform=cpu", f"run_dir={tmp_path}/run", *letters_job),
            *("refiner.template=dialogue", "constraint.mode=penalty", "constraint.eta=0.1", *JOBS[name]),
            *(f"trainer.total_training_steps={NUM_STEPS}", "trainer.total_epochs=9", "trainer.save_freq=-1"),
        ],
        cwd=tmp_path,
    )
    assert job.wait(900) == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert len(steps) == NUM_STEPS
    assert all((step["tokens/refine"] > 0) is (name in DECODES) for step in steps)
    assert all(step["actor/sft_cross_entropy"] == 0 for step in steps)
    last = steps[-1]
    if name == "static KL":
        assert [step["constraint/in_place_responses"] for step in steps] == [16, 16]
        assert abs(steps[0]["constraint/in_place_charge"]) < 1e-5 < abs(last["constraint/in_place_charge"])
    elif name == "failed":
        assert 0 < last["constraint/in_place_responses"] < 16 and last["refiner/skipped/not_asked"] == 16
    elif name == "streaming":
        assert last["constraint/in_place_responses"] == last["refiner/num_accepted"] > 0
    elif name == "another problem":
        assert 0 < last["constraint/in_place_responses"] <= last["refiner/num_accepted"]
    assert last["constraint/penalty"] != 0
    if name == "constant":
        assert last["constraint/divergence_per_token"] == pytest.approx(last["refiner/improvement_ratio"])
