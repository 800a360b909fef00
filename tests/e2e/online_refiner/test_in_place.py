"""Whole jobs in place (numbers: test_modes.py), and with examples/own_constraint (numbers: test_backends.py)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.report.reading import read_run

OWN = Path(__file__).parents[3] / "examples" / "own_constraint"
DEDICATED = ["refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"]
SHARED = [
    "refiner.placement=shared",
    "actor_rollout_ref.model.lora_rank=8",
    "actor_rollout_ref.model.lora_alpha=64",
    "actor_rollout_ref.rollout.max_model_len=640",
    "actor_rollout_ref.actor.optim.lr=0.3",
]
JOBS = {
    "streaming": ["constraint.target=in_place", *DEDICATED],
    "failed": ["constraint.target=in_place", "constraint.reward_gate=failed", "refiner.skip_reward_at_least=0.5"],
    "shared": ["constraint.target=in_place", *SHARED],
}
DECODES = ("streaming", "shared")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_job_charges_in_place(name: str, train_letters: Callable, tmp_path: Path) -> None:
    settings = ("refiner.template=dialogue", "constraint.mode=penalty", "constraint.eta=0.1", *JOBS[name])
    first, last = train_letters(tmp_path, 2, *settings).steps
    for step in (first, last):
        assert (step["tokens/refine"] > 0) is (name in DECODES)
        assert "actor/sft_cross_entropy" not in step
        if name in DECODES:
            scored = step["constraint/in_place_responses"] + step["constraint/in_place_unscored"]
            assert scored == step["refiner/num_accepted"]
    if name == "failed":
        assert 0 < last["constraint/in_place_responses"] < 16 and last["refiner/skipped/not_asked"] == 16
    else:
        assert first["constraint/in_place_responses"] == first["refiner/num_accepted"] > 0
        assert last["constraint/in_place_responses"] == last["refiner/num_accepted"]
    assert first["constraint/penalty"] or last["constraint/penalty"]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], DEDICATED])
def test_a_job_with_a_constraint_of_ones_own(settings: list[str], train_letters: Callable, tmp_path: Path) -> None:
    fixed = ("refiner.template=dialogue", "constraint.mode=soft:Soft", "constraint.eta=0.1")
    trained = train_letters(tmp_path, 2, *fixed, *settings, environment={"PYTHONPATH": str(OWN)})
    assert read_run(f"{tmp_path}/run").meanings.keys() == {"constraint/soft_tokens", "constraint/soft_share"}
    for step in trained.steps:
        assert step["refiner/num_accepted"] > 0 and step["actor/sft_cross_entropy"] > 0
        # The last token of each is the written one alone, and 16 of so few tokens have most of the rest.
        assert 0.4 < step["constraint/soft_share"] < 1
