"""The main job end to end: verl's own trainer, Ray, TransferQueue, FSDP2 and vLLM, on a tiny random model."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.cpu_platform import ENVIRONMENT
from recipe.online_refiner.metric_names import COUNTS
from recipe.runs.files import Records

REPOSITORY = Path(__file__).parents[3]
STEPS = [1, 2, 3]  # of stock verl's job


def ours(run_dir: Path, *overrides: str) -> list[str]:
    return ["-m", "recipe.online_refiner.main", "platform=cpu", f"run_dir={run_dir}", *overrides]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    """Return the parameters of a checkpoint: each rank has its rows."""
    files = sorted((folder / "checkpoints" / f"global_step_{step}" / "actor").glob("model_world_size_*_rank_*.pt"))
    shards = [torch.load(file, weights_only=False) for file in files]
    return {
        name: torch.cat([getattr(shard[name], "_local_tensor", shard[name]) for shard in shards]) for name in shards[0]
    }


def assert_same_numbers(stock: Any, run_dir: Path, killed_at: int) -> None:
    """Compare advantages and loss of every step with stock verl's.

    The line of the step that a killed run had last saved may lack what verl computes after saving.
    """
    steps = rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in steps] == STEPS
    names = ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean")
    names += tuple(f"critic/advantages/{kind}" for kind in ("mean", "max", "min"))
    for step, expected in zip(steps, stock.steps, strict=True):
        for name in names:
            if step["step"] == killed_at and name.startswith("critic/") and name not in step:
                continue
            assert step[name] == pytest.approx(expected[name], abs=1e-6, rel=1e-6), (step["step"], name)
        assert step["actor/grad_norm"] > 0 and step["timing_s/step"] > 0


def assert_same_parameters(stock: Path, run_dir: Path) -> None:
    for step in STEPS:
        ours, theirs = weights(run_dir, step), weights(stock, step)
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], atol=1e-6, rtol=0)


def assert_exported(run_dir: Path, folder: Path) -> None:
    """Let verl merge the last checkpoint; the folder must hold its parameters."""
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--target_dir", str(folder)]
    command += ["--local_dir", str(run_dir / "checkpoints" / f"global_step_{STEPS[-1]}" / "actor")]
    done = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    AutoTokenizer.from_pretrained(folder)
    exported = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    trained = weights(run_dir, STEPS[-1])
    assert exported.keys() == trained.keys()
    for name in exported:
        # verl's merger writes bfloat16.
        torch.testing.assert_close(exported[name], trained[name].bfloat16().float(), atol=0, rtol=0)


@pytest.mark.e2e
@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_stock_verl_trains_without_a_gpu(num_workers: int, stock_on: Callable) -> None:
    """Stock verl with the platform's variable and config group: each worker is an FSDP rank, and has a replica."""
    steps = stock_on(num_workers).steps
    assert [step["training/global_step"] for step in steps] == STEPS
    for step in steps:
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"):
            assert math.isfinite(step[name]), (name, step[name])
        assert step["actor/grad_norm"] > 0
        # The second step's rollouts come from synced weights: stale or broken ones differ by tenths.
        assert step["training/rollout_probs_diff_max"] < 1e-3, step
        assert 0.1 < step["actor/perf/max_memory_allocated_gb"] < 10


ETA_ZERO = ["constraint.mode=penalty", "constraint.eta=0", "refiner.template=dialogue", "refiner.temperature=0"]
ARMS = {
    "eta 0, the driver is killed": (1, ETA_ZERO),
    "eta 0 on two workers, one of which is killed": (2, [*ETA_ZERO, "refiner.num_replicas=1"]),
    "no refiner": (1, ["constraint.mode=none", "measure.num_kl_rollouts=0"]),
}
OFTEN, WORKER_DIES, _ = ARMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run that was killed at a checkpoint and started again, and stock verl's run of the same job."""

    arm: str
    stock: Any
    """The run of stock verl, a ``Stock`` of conftest.py."""
    run_dir: Path
    killed: Any
    """The first start, a ``Job`` of conftest.py."""
    killed_at: int
    output: str
    """The output of the second start."""


@pytest.fixture(
    scope="module", params=[arm if arm == OFTEN else pytest.param(arm, marks=pytest.mark.slow) for arm in ARMS]
)
def resumed(
    request: pytest.FixtureRequest, stock_on: Callable, start_marked: Callable, tmp_path_factory: Any
) -> Resumed:
    num_workers, settings = ARMS[request.param]
    stock, folder = stock_on(num_workers), tmp_path_factory.mktemp("resumed")
    run_dir = folder / "run"
    command = ours(run_dir, *settings, *stock.job)
    first = start_marked(command, cwd=folder)
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    first.wait_until(tracker.exists)  # verl logs the step later: its line of metrics must be there all the same
    if request.param == WORKER_DIES:
        next(process for process in first.descendants() if "WorkerDict" in process.name()).kill()
        assert first.wait() not in (0, None)
        assert "has died: worker" in first.output()
    else:
        first.process.kill()  # the driver alone
        first.process.wait()
    assert first.survivors(agents=False) == []
    killed_at = int(tracker.read_text())
    assert killed_at != STEPS[-1], "the run ended before it was killed"

    second = start_marked(command, cwd=folder)
    assert second.wait() == 0, second.output()[-6000:]
    assert second.survivors() == []
    return Resumed(
        arm=request.param,
        stock=stock,
        run_dir=run_dir,
        killed=first,
        killed_at=killed_at,
        output=second.output(),
    )


@pytest.mark.e2e
def test_it_has_stock_verls_numbers_and_parameters(resumed: Resumed, tmp_path: Path) -> None:
    assert_same_numbers(resumed.stock, resumed.run_dir, resumed.killed_at)
    assert_same_parameters(resumed.stock.folder, resumed.run_dir)
    if resumed.arm == WORKER_DIES:  # its checkpoint is of two ranks
        assert_exported(resumed.run_dir, tmp_path / "exported")


@pytest.mark.e2e
def test_a_killed_run_goes_on_behind_its_checkpoint_and_its_records_are_complete(resumed: Resumed) -> None:
    assert f"setting global step to {resumed.killed_at}" in resumed.output
    steps, refines = rows(resumed.run_dir / "metrics.jsonl"), resumed.arm != "no refiner"
    assert set(COUNTS) <= set(steps[0])
    assert any(step["refiner/num_accepted"] for step in steps) is refines
    assert {json.loads(line)["step"] for line in Records(f"{resumed.run_dir}/refinements").lines()} == (
        set(STEPS) if refines else set()
    )


@pytest.mark.e2e
def test_nothing_is_left_of_the_killed_run(resumed: Resumed) -> None:
    assert resumed.killed.survivors() == []


@pytest.mark.e2e
@pytest.mark.slow
def test_a_validation_that_a_killed_run_missed_is_made_up_for(train_letters: Callable, tmp_path: Path) -> None:
    settings = ["constraint.mode=none", "measure.num_kl_rollouts=0", "trainer.save_freq=1"]
    (saved,) = train_letters(tmp_path, 1, *settings).steps
    (validated,) = train_letters(tmp_path, 1, *settings, "trainer.test_freq=5", "console=progress").steps
    new = validated.keys() - saved.keys()
    assert new and all(name.startswith("val-") for name in new) and {**validated, **saved} == validated
    again = train_letters(tmp_path, 1, *settings, "trainer.test_freq=5", "console=progress")
    assert again.steps == [validated] and "no step was left to do" in again.output
