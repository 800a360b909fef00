"""The main job end to end: verl's own trainer, Ray, TransferQueue, FSDP2 and vLLM, on a tiny random model."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.cpu_platform import ENVIRONMENT
from recipe.online_refiner.metrics import MEANING

REPOSITORY = Path(__file__).parents[3]
NUM_STEPS = 3  # of `stock` and `replayed_job`


def ours(run_dir: Path, *overrides: str) -> list[str]:
    return ["-m", "recipe.online_refiner.main", "platform=cpu", f"run_dir={run_dir}", *overrides]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(checkpoints: Path, step: int) -> dict[str, torch.Tensor]:
    state = torch.load(
        checkpoints / f"global_step_{step}" / "actor" / "model_world_size_1_rank_0.pt", weights_only=False
    )
    return {name: getattr(tensor, "_local_tensor", tensor) for name, tensor in state.items()}


def assert_same_training(stock: Path, run_dir: Path, killed_at: int = 0) -> None:
    """Compare advantages, loss and parameters of every step with stock verl's.

    The line of the step that a killed run had last saved may lack what verl computes after saving.
    """
    reference = [row["data"] for row in rows(stock / "metrics.jsonl")]
    steps = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in steps] == list(range(1, NUM_STEPS + 1))
    names = ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean")
    names += tuple(f"critic/advantages/{kind}" for kind in ("mean", "max", "min"))
    for step, expected in zip(steps, reference, strict=True):
        for name in names:
            if step["step"] == killed_at and name.startswith("critic/") and name not in step:
                continue
            assert step[name] == pytest.approx(expected[name], abs=1e-6, rel=1e-6), (step["step"], name)
        assert step["actor/grad_norm"] > 0 and step["timing_s/step"] > 0
    ours, theirs = (weights(folder / "checkpoints", NUM_STEPS) for folder in (run_dir, stock))
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-6, rtol=0)


def assert_exported(run_dir: Path, folder: Path) -> None:
    """Export the last checkpoint; the folder must hold its parameters."""
    command = [sys.executable, "scripts/export_checkpoint.py", str(run_dir), "--output", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(folder)
    AutoTokenizer.from_pretrained(folder)
    exported = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    trained = weights(run_dir / "checkpoints", NUM_STEPS)
    assert exported.keys() == trained.keys()
    for name in exported:
        # verl's merger writes bfloat16.
        torch.testing.assert_close(exported[name], trained[name].bfloat16().float(), atol=0, rtol=0)


@pytest.mark.e2e
def test_mode_none_is_verl(stock: Path, start_marked: Callable, replayed_job: list[str], tmp_path: Path) -> None:
    job = start_marked(
        ours(
            tmp_path / "run",
            *("constraint.mode=none", "refiner.num_kl_rollouts=0", f"trainer.save_freq={NUM_STEPS}", *replayed_job),
        ),
        cwd=tmp_path,
    )
    assert job.wait(400) == 0, job.output()[-6000:]
    assert job.survivors() == []
    assert_same_training(stock, tmp_path / "run")
    assert set(MEANING) <= set(rows(tmp_path / "run" / "metrics.jsonl")[0])
    assert_exported(tmp_path / "run", tmp_path / "exported")


@pytest.mark.e2e
def test_eta_zero_is_verl_even_when_killed_and_resumed(
    stock: Path, start_marked: Callable, replayed_job: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    command = ours(
        run_dir,
        *("constraint.eta=0", "refiner.template=dialogue", "refiner.temperature=0", "trainer.save_freq=1"),
        *replayed_job,
    )
    first = start_marked(command, cwd=tmp_path)
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    first.wait_until(tracker.exists, 400)  # verl logs the step later: its line of metrics must be there all the same
    first.kill_all()
    killed_at = tracker.read_text().strip()
    assert killed_at != str(NUM_STEPS), "the run ended before it was killed"

    second = start_marked(command, cwd=tmp_path)
    assert second.wait(400) == 0, second.output()[-6000:]
    assert second.survivors() == []
    assert f"setting global step to {killed_at}" in second.output()
    assert_same_training(stock, run_dir, killed_at=int(killed_at))
    assert any(step["refiner/num_accepted"] for step in rows(run_dir / "metrics.jsonl"))
    steps = {row["step"] for row in rows(run_dir / "refinements.jsonl")}
    assert steps == set(range(1, NUM_STEPS + 1))


@pytest.mark.e2e
def test_two_workers_train_with_a_frozen_refiner_that_is_killed(
    start_marked: Callable, letters_job: list[str], tmp_path: Path
) -> None:
    """Every step has the same rollouts, so a greedy refiner must answer the same while the policy changes."""
    run_dir, num_steps = tmp_path / "run", 4
    job = start_marked(
        ours(
            run_dir,
            *letters_job,
            *("constraint.eta=0.1", "constraint.cross_entropy_all_every=1"),
            *("refiner.temperature=0", "refiner.num_replicas=1", "refiner.template=dialogue"),
            *("trainer.n_gpus_per_node=2", f"trainer.total_training_steps={num_steps}", "trainer.save_freq=-1"),
            *("trainer.total_epochs=4", "skip.rollout_tq.enable=True", "skip.rollout_tq.action=repeat"),
            *(f"skip.rollout_tq.steps={[1, 2, 3, 4]}", f"skip.rollout_tq.dump_dir={tmp_path}/rollouts"),
        ),
        cwd=tmp_path,
    )
    job.wait_until(lambda: len(rows(run_dir / "metrics.jsonl")) >= 1, 400)
    pids = re.findall(r"refiner replica 0: server process (\d+)", job.output())
    assert len(pids) == 1
    psutil.Process(int(pids[0])).kill()
    assert job.wait(400) == 0, job.output()[-6000:]
    assert job.survivors() == []

    steps = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert sum(step["refiner/num_restarts"] for step in steps) == 1
    for step in steps:
        unknown = {"kl_ref/k3"} if step["tokens/kl_ref"] == 0 else set()  # killed while it was asked
        for name in MEANING.keys() - unknown:
            assert isinstance(step[name], float) and math.isfinite(step[name]), name
        for name in ("actor/pg_loss", "actor/grad_norm"):
            assert math.isfinite(step[name]), name
    # The policy has moved: what the same refinements cost it is another number in every step.
    crossed = [step["constraint/cross_entropy_all"] for step in steps if not step["refiner/failed/request"]]
    assert len(crossed) >= 3 and len(set(crossed)) == len(crossed)
    assert steps[0]["constraint/penalty"] < 0
    assert steps[0]["kl_ref/k3"] < 1e-3 < steps[-1]["kl_ref/k3"]

    refinements = rows(run_dir / "refinements.jsonl")
    by_step = [sorted_refinements(refinements, step) for step in (1, 4)]
    assert by_step[0] == by_step[1], "pi_0 must not change"
    for row in refinements:
        if row["refined_reward"] is not None:
            assert (row["verdict"] == "accepted") == (row["refined_reward"] > row["reward"])
    shutil.rmtree(tmp_path / "rollouts")


def sorted_refinements(refinements: list[dict[str, Any]], step: int) -> list[tuple[str, str, str]]:
    return sorted((row["response"], row["refined"] or "", row["verdict"]) for row in refinements if row["step"] == step)
