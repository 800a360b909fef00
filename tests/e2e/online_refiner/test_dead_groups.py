"""Groups in which every response is wrong, under DAPO's filter: what the refiner can do is all there is to learn."""

from collections.abc import Callable
from pathlib import Path

import pytest

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == "abcdz")
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_dead_groups_teach_what_the_refiner_can(train_letters: Callable, tmp_path: Path) -> None:
    """The policy writes so hot that one response in a hundred is right; the greedy refiner's always is."""
    reward = tmp_path / "exact.py"
    reward.write_text(REWARD)
    steps = train_letters(
        tmp_path,
        8,
        "refiner.placement=dedicated",
        "refiner.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=2",
        "refiner.template=dialogue",
        "measure.num_kl_rollouts=0",
        "constraint.mode=lagrangian",
        "constraint.eta=1",
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=reward",
        "actor_rollout_ref.rollout.temperature=2",
        f"reward.custom_reward_function.path={reward}",
        "actor_rollout_ref.actor.optim.lr=0.5",
        "measure.cross_entropy_all_every=1",
        "constraint.rescue_dead_groups=true",
    ).steps
    assert steps[0]["constraint/num_rescued_groups"] >= 3 and steps[0]["reward/mean"] < 0.1
    assert max(step["reward/mean"] for step in steps) > 0.3, "such large steps may overshoot afterwards"
    crossed = [step["constraint/cross_entropy_accepted"] for step in steps if step["refiner/num_accepted"]]
    assert min(crossed[1:]) < crossed[0] / 2
    for step in steps:
        if step["constraint/num_rescued_groups"] == 4:
            assert step["critic/advantages/max"] == step["critic/advantages/min"] == 0
