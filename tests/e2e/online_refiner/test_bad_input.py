"""A user's mistake ends the command with one clear line before Ray starts; a dry run starts nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def overrides(tiny_llama: Path, letter_prompts: Path) -> list[str]:
    return [
        *("platform=cpu", f"actor_rollout_ref.model.path={tiny_llama}", "data.train_batch_size=4"),
        *(f"data.train_files={letter_prompts}", f"data.val_files={letter_prompts}", "data.max_response_length=16"),
        *("data.max_prompt_length=64", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
        "reward.custom_reward_function.path=pkg://recipe.smoke.letters",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    ]


@pytest.mark.e2e
@pytest.mark.slow  # test_examples.py has one in the default set
def test_dry_run_prints_the_plan_and_starts_nothing(
    start_marked: Callable, overrides: list[str], tmp_path: Path
) -> None:
    job = start_marked(["-m", "recipe.online_refiner.main", "dry_run=true", *overrides], cwd=tmp_path)
    assert job.wait(200) == 0, job.output()
    assert "1 vllm replicas, colocated" in job.output()
    assert "Ray instance" not in job.output()
    assert not (tmp_path / "runs").exists()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        # The last check: those before it pass. What each of them says is shown by the unit tests.
        ("trainer.n_gpus_per_node=1000", "error: trainer.n_gpus_per_node=1000 workers, but this machine has"),
        pytest.param("constraint.eta=-1", "error: constraint.eta=-1: Input should be greater", marks=pytest.mark.slow),
        pytest.param("refiner.eta=1", "Key 'eta' is not in struct", marks=pytest.mark.slow),  # Hydra's own
    ],
)
def test_a_mistake_is_one_line(
    start_marked: Callable, overrides: list[str], tmp_path: Path, mistake: str, message: str
) -> None:
    job = start_marked(["-m", "recipe.online_refiner.main", *overrides, mistake], cwd=tmp_path)
    assert job.wait(200) != 0
    assert message in job.output()
    assert "Traceback" not in job.output() and "Ray instance" not in job.output()
