"""verl's trainer with rollout servers of their own (``separate_async``): stock, with eta 0, and in both modes."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from recipe.online_refiner.metric_names import COUNTS
from recipe.runs.files import Records

pytestmark = [pytest.mark.timeout(2400)]
NUM_STEPS = 3
"""The number of steps of stock verl's job."""
NUM_MINI_BATCHES = 2
"""The number of updates of a step, after which the rollout's servers get the weights."""
NUM_ROLLOUTS = 16
"""The number of rollouts of a step."""
SEPARATE = [
    "trainer.v1.trainer_mode=separate_async",
    f"trainer.v1.separate_async.parameter_sync_step={NUM_MINI_BATCHES}",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=sockets",
    "actor_rollout_ref.actor.fsdp_config.reshard_after_forward=True",
]
IN_ORDER = [
    f"trainer.v1.sampler.custom_sampler.path={Path(__file__).with_name('sampler_in_order.py')}",
    "trainer.v1.sampler.custom_sampler.name=InOrder",
]


def ours(run_dir: Path, *overrides: str) -> list[str]:
    """Return the command of a run whose three pools have one worker each, the trainer's without a server."""
    return [
        "-m",
        "recipe.online_refiner.main",
        "platform=cpu",
        f"run_dir={run_dir}",
        "constraint.mode=penalty",
        "refiner.placement=dedicated",
        "refiner.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=3",
        "refiner.template=dialogue",
        "actor_rollout_ref.hybrid_engine=False",
        *overrides,
    ]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def stock(run_stock: Callable, letters_job: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[list, list]:
    """Train with stock verl, on the training worker's server and one of its own.

    Returns:
        Its metrics, and overrides of a run that repeats it.
    """
    folder = tmp_path_factory.mktemp("stock")
    job = [
        *letters_job,
        *SEPARATE,
        *IN_ORDER,
        "trainer.save_freq=-1",
        "trainer.total_epochs=9",
        f"trainer.total_training_steps={NUM_STEPS}",
        "skip.rollout_tq.enable=True",
        f"skip.rollout_tq.dump_dir={folder}/rollouts",
        f"skip.rollout_tq.steps={list(range(1, NUM_STEPS + 1))}",
    ]
    return run_stock(folder, *job, "ray_kwargs.ray_init.num_gpus=2"), job


@pytest.mark.e2e
@pytest.mark.slow
def test_stock_verl_trains_with_servers_of_their_own(stock: tuple[list, list]) -> None:
    assert len(stock[0]) == NUM_STEPS
    for step in stock[0]:
        assert step["actor/grad_norm"] > 0
        assert step["training/off_policy/trajectory_staleness/max"] == 0
        # Servers have the weights of the last sync, and so has the actor for old log-probs, also after an update.
        assert step["training/rollout_probs_diff_max"] < 1e-4


@pytest.mark.e2e
@pytest.mark.slow
def test_eta_zero_has_stock_verls_numbers(stock: tuple[list, list], start_marked: Callable, tmp_path: Path) -> None:
    (reference, overrides), run_dir = stock, tmp_path / "run"
    job = start_marked(ours(run_dir, *overrides, "constraint.eta=0", "refiner.temperature=0"), cwd=tmp_path)
    assert job.wait() == 0, job.output()[-6000:]
    assert job.survivors() == []
    steps = rows(run_dir / "metrics.jsonl")
    names = ["actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean"]
    names += [f"critic/advantages/{kind}" for kind in ("mean", "max", "min")]
    for step, expected in zip(steps, reference, strict=True):
        for name in names:
            assert step[name] == pytest.approx(expected[name], abs=1e-6, rel=1e-6), (step["step"], name)
        assert step["refiner/num_rollouts"] == NUM_ROLLOUTS and step["refiner/num_accepted"] > 0


@pytest.mark.e2e
@pytest.mark.slow
def test_bypass_mode_scores_refinements_under_a_steps_first_weights(
    start_marked: Callable, letters_job: list[str], tmp_path: Path
) -> None:
    """There verl computes no log-probs and does not load these weights; D is that of a run in which it does."""
    job = [
        *letters_job,
        *SEPARATE,
        *IN_ORDER,
        "trainer.save_freq=-1",
        "trainer.total_epochs=9",
        "constraint.eta=0",
        "trainer.total_training_steps=2",
        "refiner.temperature=0",
        "skip.rollout_tq.enable=True",
        f"skip.rollout_tq.dump_dir={tmp_path}/rollouts",
        "skip.rollout_tq.steps=[1,2]",
        "actor_rollout_ref.rollout.calculate_log_probs=true",
    ]
    found = []
    for bypasses in ("false", "true"):
        folder = tmp_path / bypasses
        folder.mkdir()
        command = ours(folder / "run", *job, f"algorithm.rollout_correction.bypass_mode={bypasses}")
        run = start_marked(command, cwd=folder)
        assert run.wait() == 0, run.output()[-6000:]
        assert run.survivors() == []
        steps = rows(folder / "run" / "metrics.jsonl")
        found.append([step["constraint/divergence_per_token"] for step in steps])
    assert found[1] == pytest.approx(found[0], rel=1e-2) and min(found[0]) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A run in mode penalty whose refiner was killed, and then the run itself; it goes on in mode sft."""

    run_dir: Path
    killed_at: int
    """The last checkpoint before."""
    steps: list[dict[str, Any]]


@pytest.fixture(scope="module")
def trained(start_marked: Callable, letters_job: list[str], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    run_dir = folder / "run"
    job = [
        *letters_job,
        *SEPARATE,
        "trainer.save_freq=1",
        "trainer.total_epochs=99",
        "constraint.eta=0.1",
        # At the task's own rate nothing is left to refine after a few steps.
        "measure.cross_entropy_all_every=1",
        "actor_rollout_ref.actor.optim.lr=5e-4",
    ]
    first = start_marked(ours(run_dir, *job, "trainer.total_training_steps=99"), cwd=folder)
    first.wait_until((run_dir / "metrics.jsonl").exists)
    replica = re.search(r"refiner replica 0: server process (\d+)", first.output())
    assert replica is not None
    psutil.Process(int(replica[1])).kill()
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    first.wait_until(lambda: tracker.exists() and int(tracker.read_text() or 0) >= 6)
    first.process.kill()  # the driver alone
    first.process.wait()
    assert first.survivors(agents=False) == []
    killed_at = int(tracker.read_text())

    last = f"trainer.total_training_steps={killed_at + 6}"
    second = start_marked(ours(run_dir, *job, last, "constraint.mode=sft"), cwd=folder)
    assert second.wait() == 0, second.output()[-6000:]
    assert second.survivors() == []
    assert f"setting global step to {killed_at}" in second.output()
    return Trained(run_dir=run_dir, killed_at=killed_at, steps=rows(run_dir / "metrics.jsonl"))


@pytest.mark.e2e
@pytest.mark.slow
def test_both_modes_train_through_the_death_of_refiner_and_run(trained: Trained) -> None:
    steps = trained.steps
    assert [step["step"] for step in steps] == list(range(1, trained.killed_at + 7))
    assert all(name in step for step in steps for name in COUNTS)
    assert sum(step["refiner/num_restarts"] for step in steps) == 1
    for step in steps:
        assert step["refiner/num_rollouts"] == NUM_ROLLOUTS and step["reward/num_lost"] == 0
        assert step["refiner/improvement_ratio"] == pytest.approx(step["refiner/num_accepted"] / NUM_ROLLOUTS)
        assert step["actor/grad_norm"] > 0
    penalty, sft = steps[: trained.killed_at], steps[trained.killed_at :]
    assert sum(step["constraint/penalty"] < 0 for step in penalty) >= 4
    assert not any("actor/sft_cross_entropy" in step for step in penalty)
    assert sum(step.get("actor/sft_cross_entropy", 0) > 0 for step in sft) >= 4
    assert not any("constraint/penalty" in step for step in sft)
    lines = [json.loads(line) for line in Records(f"{trained.run_dir}/refinements").lines()]
    assert len({line["key"] for line in lines}) == len(lines) == NUM_ROLLOUTS * len(steps)


@pytest.mark.e2e
@pytest.mark.slow
def test_servers_get_weights_and_the_metrics_say_how_old_they_were(trained: Trained) -> None:
    later = [step for step in trained.steps if step["step"] > 2 and "training/global_step" in step]
    oldest = [step["training/off_policy/trajectory_staleness/max"] for step in later]
    assert max(oldest) <= 2, "a batch is written ahead; without syncs the age would be the number of the step"
    for step in trained.steps[1:]:
        assert step.get("training/rollout_probs_diff_mean", 0) < 0.1


@pytest.mark.e2e
@pytest.mark.slow
def test_training_gpus_are_lent_to_the_rollout(train_letters: Callable, tmp_path: Path) -> None:
    """Servers on the training GPU may be awake when a step begins, if verl's ``enable_switch`` is set.

    They sleep before the step's first mini-batch (``PPOTrainerSeparateAsync.prepare_step``). Without warm-up this
    happens in each step.
    """
    settings = "trainer.v1.separate_async"
    steps = train_letters(
        tmp_path,
        4,
        *SEPARATE,
        "constraint.mode=penalty",
        "constraint.eta=0.1",
        "refiner.template=dialogue",
        "refiner.placement=dedicated",
        "refiner.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=3",
        f"{settings}.num_warmup_batches=0",
        f"{settings}.hybrid_rollout.enable_switch=True",
        f"{settings}.hybrid_rollout.switch_threshold_ratio=1.0",
    ).steps
    lent = [step["separate_async/decision/should_switch_to_rollout"] for step in steps]
    assert lent == [1, 1, 1, 0], "after the last step there is nothing to lend them for"
    for step in steps:
        assert step["timing_s/switch_wait"] > 0 and step["timing_s/switch_to_trainer"] > 0
        assert step["refiner/num_rollouts"] == NUM_ROLLOUTS and step["reward/num_lost"] == 0
        assert step["training/rollout_probs_diff_max"] < 0.1
    assert sum(step["constraint/penalty"] < 0 for step in steps) >= 1
