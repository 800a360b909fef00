"""Groups in which every response is wrong, under DAPO's filter: what the refiner can do is all there is to learn."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.runs.files import read_rows

NUM_STEPS, NUM_RESPONSES = 8, 16
SHOWN = ("reward/mean", "constraint/num_rescued_groups", "constraint/cross_entropy_accepted", "actor/grad_norm")
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    with open(__file__ + ".calls", "a") as calls:
        calls.write("x")
    return float(solution_str == "abcdz")
"""


@pytest.fixture
def command(letters_job: list[str], tmp_path: Path) -> list[str]:
    """Return a job whose policy writes so hot that one response in a hundred is right; the greedy refiner always is."""
    reward = tmp_path / "exact.py"
    reward.write_text(REWARD)
    return [
        *("-m", "recipe.online_refiner.main", "platform=cpu", *letters_job),
        *("refiner.placement=dedicated", "refiner.n_gpus_per_node=1", "ray_kwargs.ray_init.num_gpus=2"),
        *("refiner.template=dialogue", "measure.num_kl_rollouts=0", "constraint.mode=lagrangian", "constraint.eta=1"),
        *("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward"),
        *("actor_rollout_ref.rollout.temperature=2", f"reward.custom_reward_function.path={reward}"),
        *("actor_rollout_ref.actor.optim.lr=0.5", "measure.cross_entropy_all_every=1"),
        *(f"trainer.total_training_steps={NUM_STEPS}", "trainer.total_epochs=99", "trainer.save_freq=-1"),
    ]


@pytest.mark.e2e
@pytest.mark.slow
def test_dead_groups_teach_what_the_refiner_can(command: list[str], start_marked: Callable, tmp_path: Path) -> None:
    """Without the rescue the filter takes nearly every group, and the first step does not come."""
    run_dir = tmp_path / "rescued"
    started = time.monotonic()
    job = start_marked([*command, f"run_dir={run_dir}", "constraint.rescue_dead_groups=true"], cwd=tmp_path)
    assert job.wait(900) == 0, job.output()[-6000:]
    patience_s = time.monotonic() - started
    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert [step["step"] for step in steps] == list(range(1, NUM_STEPS + 1))
    print([{name: step[name] for name in SHOWN} for step in steps])
    assert steps[0]["constraint/num_rescued_groups"] >= 3 and steps[0]["reward/mean"] < 0.1
    assert max(step["reward/mean"] for step in steps) > 0.3, "such large steps may overshoot afterwards"
    crossed = [step["constraint/cross_entropy_accepted"] for step in steps]
    assert min(crossed[1:]) < crossed[0] / 2
    for step in steps:
        if step["constraint/num_rescued_groups"] == 4:
            assert step["critic/advantages/max"] == step["critic/advantages/min"] == 0

    calls = tmp_path / "exact.py.calls"
    num_calls = calls.stat().st_size
    filtered = start_marked([*command, f"run_dir={tmp_path}/filtered"], cwd=tmp_path)
    end = time.monotonic() + patience_s
    filtered.wait_until(lambda: time.monotonic() > end, 2 * patience_s)
    assert not (tmp_path / "filtered" / "metrics.jsonl").exists()
    filtered.kill_all()
    assert calls.stat().st_size - num_calls > 3 * NUM_RESPONSES, "batch after batch was written, and none was left"
