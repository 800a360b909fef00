"""Which responses of a group are refined."""

import pytest
from omegaconf import OmegaConf

from recipe.online_refiner.refine_stage import Rollout, choose
from refiner_worker.config import RefinerConfig

VALUES = {
    **{
        "model_path": "m",
        "placement": "colocated",
        "nnodes": 1,
        "n_gpus_per_node": None,
        "streaming": None,
        "template": "apps",
        "max_new_tokens": 8,
    },
    **{"max_model_len": None, "temperature": 0.0, "top_p": 1.0, "skip_reward_at_least": 1.0, "group_choice": "lowest"},
    **{"max_refinements_per_group": None, "num_candidates": 1, "request_timeout_s": 1.0, "on_replica_death": "stop"},
    **{"max_requests_in_flight": 8},
    **{"num_replicas": None, "num_kl_rollouts": None, "rollout": {}, "draft": None, "num_draft_tokens": 8},
}
REWARDS = [0.5, -1.0, 1.0, -0.3, -0.3, 1.0, 0.9, 0.2]  # two groups of four


def config(**changes: object) -> RefinerConfig:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RefinerConfig), {**VALUES, **changes}))


def rollouts() -> list[Rollout]:
    return [
        Rollout(key=str(n), group=str(n // 4), messages=[], prompt_ids=[1], response_ids=[2], reward=reward, sample={})
        for n, reward in enumerate(REWARDS)
    ]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, {0, 1, 3, 4, 6, 7}), (1, {1, 4}), (2, {1, 3, 4, 7}), (9, {0, 1, 3, 4, 6, 7})],
)
def test_lowest_rewards_first_and_never_a_maximal_one(limit: int | None, expected: set[int]) -> None:
    assert choose(config(max_refinements_per_group=limit), rollouts(), seed=0) == expected


def test_random_choice_follows_the_seed_and_keeps_the_limit() -> None:
    random = config(max_refinements_per_group=2, group_choice="random")
    found = [choose(random, rollouts(), seed) for seed in range(20)]
    assert found[0] == choose(random, rollouts(), 0)
    assert len({frozenset(chosen) for chosen in found}) > 3
    for chosen in found:
        assert len(chosen & {0, 1, 3}) == len(chosen & {4, 6, 7}) == 2 and len(chosen) == 4
