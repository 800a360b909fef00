"""Stock verl, untouched, trains on CPU once the environment variable and the config group are given."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest


def check(metrics: Path, num_steps: int) -> None:
    steps = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    assert [step["training/global_step"] for step in steps] == list(range(1, num_steps + 1))
    for step in steps:
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"):
            assert math.isfinite(step[name]), (name, step[name])
        assert step["actor/grad_norm"] > 0
        # The second step's rollouts come from synced weights: stale or broken ones differ by tenths.
        assert step["training/rollout_probs_diff_max"] < 1e-3, step
        assert 0.1 < step["actor/perf/max_memory_allocated_gb"] < 10


@pytest.mark.e2e
def test_grpo_trains_on_one_worker(stock: Path) -> None:
    check(stock / "metrics.jsonl", 3)


@pytest.mark.e2e
def test_grpo_trains_on_two_workers(run_stock: Callable, letters_job: list[str], tmp_path: Path) -> None:
    """2 FSDP ranks and 2 vLLM replicas."""
    overrides = ("trainer.n_gpus_per_node=2", "trainer.total_training_steps=2", "trainer.save_freq=-1")
    check(run_stock(tmp_path, *letters_job, *overrides), 2)
