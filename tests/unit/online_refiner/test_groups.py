"""What the responses to one prompt say about each other, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.online_refiner.groups import Member, dead_groups, mixed_advantages, weights_of_pairs

REWARDS = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


def is_solved(reward: float) -> bool:
    return reward >= 1.0


def test_groups_in_which_no_response_is_better_than_another() -> None:
    rewards = {"same": [-0.3, -0.3], "mixed": [-0.3, 1.0], "alone": [-0.3], "solved": [1.0, 1.0, 1.0]}
    members = [Member(group, reward, None, 0) for group, values in rewards.items() for reward in values]
    assert dead_groups(members) == {"same", "solved"}


def test_refinements_as_members_by_hand() -> None:
    # -1, -1 and a refinement of 0.5: mean -0.5, deviation sqrt((0.25 + 0.25 + 1) / 2) = 0.866.
    own, refined = mixed_advantages([-1.0, -1.0], [0.5])
    assert own == pytest.approx([-0.577, -0.577], abs=1e-3) and refined == pytest.approx([1.155], abs=1e-3)
    assert mixed_advantages([0.3], []) == ([0.0], [])


@given(rewards=REWARDS, refined=REWARDS)
def test_advantages_of_a_mixed_group_sum_to_nothing(rewards: list[float], refined: list[float]) -> None:
    own, other = mixed_advantages(rewards, refined)
    assert sum(own + other) == pytest.approx(0, abs=1e-3)
    assert all(map(math.isfinite, own + other))


def test_weights_of_pairs_by_hand() -> None:
    members = [
        *(Member("u", -1.0, 2.0, 3, 0.5), Member("v", -0.6, 1.0, 2, 0.2), Member("u", -1.0, None, 0)),
        *(Member("v", 1.0, None, 0), Member("v", 1.0, None, 0), Member("v", 0.1, None, 0)),
    ]
    assert weights_of_pairs(None, members, is_solved) == [1.0] * 6
    assert weights_of_pairs("failure_rate", members, is_solved) == [1.0, 0.5, 1.0, 0.5, 0.5, 0.5]
    # In v: -0.6, 1, 1, 0.1 and 0.2 have mean 0.34 and deviation 0.677, so the better answer is still a bad one.
    assert weights_of_pairs("advantage", members, is_solved)[:2] == pytest.approx([1.155, -0.207], abs=1e-3)
