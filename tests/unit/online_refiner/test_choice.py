"""Which responses of a group are refined."""

import pytest
from omegaconf import OmegaConf

from recipe.online_refiner.refine import choose
from recipe.online_refiner.rollout import Rollout
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
    **{
        "max_refinements_per_group": None,
        "num_candidates": 1,
        "block": None,
        "request_timeout_s": 1.0,
        "on_replica_death": "stop",
    },
    **{"max_requests_in_flight": 8, "block_choice": "random", "restart_timeout_s": 1.0},
    **{
        "num_replicas": None,
        "num_kl_rollouts": None,
        "num_workers": None,
        "rollout": {},
        "draft": None,
        "num_draft_tokens": 8,
    },
}
REWARDS = [0.5, -1.0, 1.0, -0.3]


def config(**changes: object) -> RefinerConfig:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RefinerConfig), {**VALUES, **changes}))


def rollouts(step: int = 1) -> list[Rollout]:
    request = {"global_steps": step}
    return [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=[2], reward=reward, request=request)
        for n, reward in enumerate(REWARDS)
    ]


@pytest.mark.parametrize(("limit", "expected"), [(None, {0, 1, 3}), (1, {1}), (2, {1, 3}), (9, {0, 1, 3})])
def test_lowest_rewards_first_and_never_a_maximal_one(limit: int | None, expected: set[int]) -> None:
    assert choose(config(max_refinements_per_group=limit), rollouts()) == expected


def test_a_random_choice_changes_with_the_step_and_not_with_the_order() -> None:
    random = config(max_refinements_per_group=2, group_choice="random")
    found = [choose(random, rollouts(step)) for step in range(20)]
    assert found[0] == choose(random, rollouts(0))
    assert len({frozenset(chosen) for chosen in found}) == 3
    for step, chosen in enumerate(found):
        assert len(chosen) == 2 and chosen < {0, 1, 3}
        backwards = list(reversed(rollouts(step)))
        assert {backwards[index].key for index in choose(random, backwards)} == {f"u_{n}_0" for n in chosen}


def test_a_session_without_a_last_turn_takes_no_place() -> None:
    members = rollouts()
    members[1].start = len(members[1].response_ids)
    assert choose(config(max_refinements_per_group=1), members) == {3}


def test_lowest_rewards_are_chosen_in_any_order() -> None:
    equal = [
        Rollout(key=f"u_{n}_0", messages=[], prompt_ids=[1], response_ids=[2], reward=0.5, request={})
        for n in (3, 1, 2)
    ]
    assert choose(config(max_refinements_per_group=1), equal) == {1}
