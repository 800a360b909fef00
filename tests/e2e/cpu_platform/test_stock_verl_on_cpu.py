"""Stock verl, untouched, trains on CPU once the environment variable and the config group are given."""

import json
import math
from collections.abc import Callable

import pytest


@pytest.mark.e2e
@pytest.mark.alone
@pytest.mark.parametrize("num_workers", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_grpo_trains(num_workers: int, stock_on: Callable) -> None:
    """Each worker is an FSDP rank, and has a vLLM replica."""
    metrics = stock_on(num_workers).folder / "metrics.jsonl"
    steps = [json.loads(line)["data"] for line in metrics.read_text().splitlines()]
    assert [step["training/global_step"] for step in steps] == [1, 2, 3]
    for step in steps:
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/rewards/mean"):
            assert math.isfinite(step[name]), (name, step[name])
        assert step["actor/grad_norm"] > 0
        # The second step's rollouts come from synced weights: stale or broken ones differ by tenths.
        assert step["training/rollout_probs_diff_max"] < 1e-3, step
        assert 0.1 < step["actor/perf/max_memory_allocated_gb"] < 10
