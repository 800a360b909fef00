"""verl's asynchronous trainer, whose unfinished responses go on after the step, refined on either kind of placement."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.online_refiner.metrics import MEANING
from recipe.runs.files import read_rows, refinement_lines

NUM_STEPS = 3
PLACEMENTS = {
    "colocated": [],
    "dedicated": ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"],
}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_asynchronous_trainer_refines(
    placement: str, start_marked: Callable, letters_job: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    job = start_marked(
        [
            *("-m", "recipe.online_refiner.main", "platform=cpu", f"run_dir={run_dir}", *letters_job),
            *("trainer.v1.trainer_mode=colocate_async", *PLACEMENTS[placement]),
            *(
                "refiner.template=dialogue",
                "constraint.mode=penalty",
                "constraint.eta=0.1",
                "measure.cross_entropy_all_every=1",
            ),
            *(f"trainer.total_training_steps={NUM_STEPS}", "trainer.total_epochs=9", "trainer.save_freq=-1"),
        ],
        cwd=tmp_path,
    )
    assert job.wait(900) == 0, job.output()[-6000:]
    assert job.survivors() == []

    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert [step["step"] for step in steps] == list(range(1, NUM_STEPS + 1))
    assert all(name in step for step in steps for name in MEANING)
    assert all(step["refiner/num_rollouts"] == 16 for step in steps)
    assert all(step["refiner/num_accepted"] > 0 for step in steps)
    rows = list(map(json.loads, refinement_lines(run_dir)))
    assert len({row["key"] for row in rows}) == len(rows) == 16 * NUM_STEPS, "each response is refined once"
