"""Whole jobs on verl's Megatron engine: Ray, TransferQueue, vLLM and weight sync, on the CPU."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
REPOSITORY = Path(__file__).parents[3]
OWN = REPOSITORY / "examples" / "own_constraint"
TWO_RANKS = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"]


@pytest.fixture
def command(letters_task: list[str], two_part_llama: Path) -> Callable[..., list[str]]:
    """Return a function from overrides to a job's command line."""

    def command(*overrides: str) -> list[str]:
        own = ["platform=cpu_megatron", f"actor_rollout_ref.model.path={two_part_llama}"]
        own += ["refiner.template=dialogue", "trainer.total_epochs=3"]
        return ["-m", "recipe.online_refiner.main", *letters_task, *own, *overrides]

    return command


def steps_of(folder: Path, num_steps: int) -> list[dict[str, Any]]:
    """Return a run's metrics, after what every job must show."""
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, num_steps + 1))
    for step in steps:
        assert step["training/rollout_probs_diff_max"] < 1e-4, "vLLM's weights are not Megatron's"
        assert step["actor/grad_norm"] > 0 and math.isfinite(step["actor/loss"])
        assert math.isfinite(step["kl_ref/k3"])
    assert any(step["refiner/num_accepted"] for step in steps)
    assert steps[-1]["kl_ref/k3"] > 10 * steps[0]["kl_ref/k3"], "the policy does not move"
    return steps


def exported(folder: Path) -> dict[str, torch.Tensor]:
    """Return the parameters of a run's last checkpoint: verl writes a Hugging Face folder into it."""
    checkpoints = folder / "run" / "checkpoints"
    step = (checkpoints / "latest_checkpointed_iteration.txt").read_text()
    output = checkpoints / f"global_step_{step}" / "actor" / "model" / "huggingface"
    AutoTokenizer.from_pretrained(output)
    return AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32).state_dict()


def test_penalty_on_two_ranks_killed_resumed_and_exported(
    command: Callable, start_marked: Callable, two_part_llama: Path, tmp_path: Path
) -> None:
    """It ends with the parameters of a run that nobody killed, on the same rollouts."""
    # With so large an epsilon rounding noise stays small, which Adam would turn into steps of the learning rate.
    adam = "+actor_rollout_ref.actor.optim.override_optimizer_config={adam_beta1:0.9,adam_eps:1e6}"
    rollouts = ["skip.rollout_tq.enable=True", f"skip.rollout_tq.dump_dir={tmp_path}/rollouts"]
    rollouts += ["skip.rollout_tq.steps=[1,2,3,4]", "trainer.total_training_steps=4", "trainer.save_freq=1"]
    rates = ["actor_rollout_ref.actor.optim.lr=2e4", "actor_rollout_ref.actor.optim.weight_decay=0"]
    settings = ["constraint.mode=penalty", "constraint.eta=0.05", *TWO_RANKS, adam, *rates, *rollouts]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    job = start_marked(command(*settings, f"run_dir={whole}/run"), cwd=whole)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    assert any(step["constraint/penalty"] < 0 for step in steps_of(whole, 4))

    arguments = command(*settings, f"run_dir={killed}/run")
    first = start_marked(arguments, cwd=killed)
    tracker = killed / "run" / "checkpoints" / "latest_checkpointed_iteration.txt"
    first.wait_until(tracker.exists)
    first.kill_all()
    killed_at = int(tracker.read_text())
    assert killed_at < 4, "the run ended before it was killed"
    second = start_marked(arguments, cwd=killed)
    assert second.wait() == 0, second.output()[-6000:]
    assert second.survivors() == []
    assert f"setting global step to {killed_at}" in second.output()
    steps_of(killed, 4)

    expected, found = exported(whole), exported(killed)
    initial = AutoModelForCausalLM.from_pretrained(two_part_llama, dtype=torch.float32).state_dict()
    assert expected.keys() == found.keys() == initial.keys()
    assert max((expected[name] - initial[name]).abs().max() for name in initial) > 2e-3
    for name in initial:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=0)


def test_sft_on_two_ranks(command: Callable, start_marked: Callable, tmp_path: Path) -> None:
    arguments = command(
        "constraint.mode=sft",
        "constraint.sft_normaliser=accepted",
        "constraint.eta=0.5",
        "measure.cross_entropy_all_every=1",
        *TWO_RANKS,
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.total_training_steps=3",
        f"run_dir={tmp_path}/run",
    )
    job = start_marked(arguments, cwd=tmp_path)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    for step in steps_of(tmp_path, 3):
        if step["refiner/num_accepted"]:
            # Before the first update of a step the loss sees the weights that the constraint saw.
            expected = step["constraint/cross_entropy_accepted"]
            assert step["actor/sft_cross_entropy"] == pytest.approx(expected, rel=1e-4)


def test_a_critic_on_two_pipeline_stages(command: Callable, start_marked: Callable, tmp_path: Path) -> None:
    stages = [f"{role}.megatron.pipeline_model_parallel_size=2" for role in ("actor_rollout_ref.actor", "critic")]
    arguments = command(
        "algorithm.adv_estimator=gae",
        "constraint.eta=0.05",
        "constraint.mode=lagrangian",
        "trainer.n_gpus_per_node=2",
        *stages,
        "critic.ppo_micro_batch_size_per_gpu=4",
        "critic.optim.lr=1e-3",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.total_training_steps=3",
        f"run_dir={tmp_path}/run",
    )
    job = start_marked(arguments, cwd=tmp_path)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = steps_of(tmp_path, 3)
    assert all(step["critic/vf_loss"] > 0 and step["critic/grad_norm"] > 0 for step in steps)
    assert steps[-1]["critic/vf_loss"] < steps[0]["critic/vf_loss"]


@pytest.mark.parametrize("settings", [["penalty", "in_place"], ["soft:Soft", "rewrite"]])
def test_other_constraints_on_two_ranks(
    settings: list[str], command: Callable, start_marked: Callable, tmp_path: Path
) -> None:
    mode, target = settings
    arguments = command(
        f"constraint.mode={mode}",
        f"constraint.target={target}",
        "constraint.eta=0.1",
        *TWO_RANKS,
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "trainer.total_training_steps=3",
        f"run_dir={tmp_path}/run",
    )
    job = start_marked(arguments, cwd=tmp_path, environment={"PYTHONPATH": str(OWN)})
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    for step in steps_of(tmp_path, 3):
        if step["refiner/num_accepted"]:
            assert ("constraint/soft_share" in step) == ("actor/sft_cross_entropy" in step) == (mode == "soft:Soft")
            assert step.get("constraint/in_place_responses", 0) == (
                step["refiner/num_accepted"] if mode == "penalty" else 0
            )
