"""verl's trainer with rollout servers of their own (``separate_async``): stock, with eta 0, and with both modes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(2400)]
STOCK_VERL = [
    *("-m", "recipe.cpu_platform.launch", "-m", "verl.trainer.main_ppo"),
    *("hydra.searchpath=[pkg://recipe.cpu_platform.config]", "+platform=cpu", "trainer.logger=[console,file]"),
]
NUM_STEPS = 3
NUM_MINI_BATCHES = 2
SEPARATE = [
    *("trainer.v1.trainer_mode=separate_async", f"trainer.v1.separate_async.parameter_sync_step={NUM_MINI_BATCHES}"),
    *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"),
    *("actor_rollout_ref.rollout.nnodes=1", "actor_rollout_ref.rollout.n_gpus_per_node=1"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend=sockets",
]
IN_ORDER = [
    f"trainer.v1.sampler.custom_sampler.path={Path(__file__).with_name('sampler_in_order.py')}",
    "trainer.v1.sampler.custom_sampler.name=InOrder",
]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """Stock verl's run."""

    steps: list[dict[str, Any]]
    """Its metrics."""
    job: list[str]
    """Overrides of a run that repeats it."""


@pytest.fixture(scope="module")
def stock(start_marked: Callable, letters_job: list[str], tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """Train with stock verl, on the training worker's server and one of its own, and keep the rollouts."""
    folder = tmp_path_factory.mktemp("stock")
    job = [
        *(*letters_job, *SEPARATE, *IN_ORDER, "trainer.save_freq=-1", "trainer.total_epochs=9"),
        *(f"trainer.total_training_steps={NUM_STEPS}", "skip.rollout_tq.enable=True"),
        *(f"skip.rollout_tq.dump_dir={folder}/rollouts", f"skip.rollout_tq.steps={list(range(1, NUM_STEPS + 1))}"),
    ]
    started = start_marked(
        [*STOCK_VERL, f"hydra.run.dir={folder}", *job, "ray_kwargs.ray_init.num_gpus=2"],
        environment={"VERL_FILE_LOGGER_PATH": f"{folder}/metrics.jsonl"},
        cwd=folder,
    )
    assert started.wait(900) == 0, started.output()[-6000:]
    assert started.survivors() == []
    return Stock(steps=[row["data"] for row in rows(folder / "metrics.jsonl")], job=job)


@pytest.mark.e2e
@pytest.mark.slow
def test_stock_verl_trains_with_servers_of_their_own(stock: Stock) -> None:
    assert len(stock.steps) == NUM_STEPS
    for number, step in enumerate(stock.steps):
        assert step["actor/grad_norm"] > 0
        assert step["training/off_policy/trajectory_staleness/max"] == 0
        assert step["training/rollout_probs_diff_max"] < (1e-4 if number == 0 else 1)
