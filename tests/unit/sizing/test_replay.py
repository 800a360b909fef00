"""A simulated step is the sum of its passes, and who refines where changes what is waited for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.sizing.replay import Group, Pace, Request, Setting, replay

PACE = Pace(pass_s=1.0, token_s=0.1)
Lengths = list[tuple[list[int], list[int]]]
"""Of each group: its responses' and its refinements'."""
groups_of_any_kind = st.lists(
    st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.lists(st.integers(1, 60), max_size=3)),
    min_size=1,
    max_size=6,
)


def play(placement: str, lengths: Lengths, **settings: Any) -> tuple[float, float]:
    groups = [
        Group(
            responses=[Request(prompt=7, answer=length) for length in answers],
            refinements=[Request(prompt=20, answer=length) for length in refined],
        )
        for answers, refined in lengths
    ]
    return replay(Setting(pace=PACE, placement=placement, **settings), groups)  # type: ignore[arg-type]


def by_passes(requests: list[Request], max_running: int = 256) -> float:
    """Play one replica as plainly as it can be: pass by pass, token by token."""
    waiting, running, clock = list(requests), [], 0.0
    while waiting or running:
        unread = 0
        while waiting and len(running) < max_running:
            running.append([waiting.pop(0), 0])
            unread += running[-1][0].prompt
        clock += PACE.pass_s + PACE.token_s * (sum(one.computed for one, _ in running) + unread)
        running = [[one, done + 1] for one, done in running if done + 1 < one.num_passes]
    return clock


@given(st.lists(st.integers(1, 80), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from([1.0, 1.7]))
def test_one_replica_is_its_sum_of_passes(answers: list[int], max_running: int, gained: float) -> None:
    requests = [Request(prompt=5 * index, answer=one, gained=gained, computed=3) for index, one in enumerate(answers)]
    setting = Setting(pace=PACE, placement="colocated", max_running=(max_running, 1))
    rollout_s, exposed_s = replay(setting, [Group(responses=requests, refinements=[])])
    assert rollout_s == pytest.approx(by_passes(requests, max_running)) and exposed_s == 0


@given(lengths=groups_of_any_kind)
def test_who_refines_elsewhere_does_not_slow_the_rollout(lengths: Lengths) -> None:
    alone = by_passes([Request(prompt=7, answer=one) for answers, _ in lengths for one in answers])
    after = by_passes([Request(prompt=20, answer=one) for _, refined in lengths for one in refined])
    for placement in ("colocated", "dedicated"):
        rollout_s, exposed_s = play(placement, lengths, streams=False)
        assert (rollout_s, exposed_s) == (pytest.approx(alone), pytest.approx(after))
    assert play("shared", lengths)[0] >= alone - 1e-9


@given(lengths=groups_of_any_kind, more=st.integers(2, 4))
def test_more_replicas_are_not_slower(lengths: Lengths, more: int) -> None:
    for placement in ("colocated", "dedicated"):
        few, many = (play(placement, lengths, num_refiners=number) for number in (1, len(lengths) * 3 + more))
        assert many[1] <= few[1] + 1e-9
    assert play("colocated", lengths, num_rollouts=30)[0] <= play("colocated", lengths)[0] + 1e-9


def test_engines_that_share_cores_slow_each_other() -> None:
    lengths = [([10], [100]), ([100], [1])]
    (apart_s, _), (together_s, _) = (play("dedicated", lengths, shares_cores=shares) for shares in (False, True))
    assert together_s > apart_s * 1.5
    hidden = [([10], [20]), ([300], [])]  # the refiner is done long before the rollout is: the work of both adds up
    (apart_s, _), (together_s, _) = (play("dedicated", hidden, shares_cores=shares) for shares in (False, True))
    assert together_s - apart_s == pytest.approx(by_passes([Request(prompt=20, answer=20)]), abs=1.2)  # a pass
    same_end = [([50], [50]), ([50], [50])]
    (_, apart_s), (_, together_s) = (play("dedicated", same_end, shares_cores=shares) for shares in (False, True))
    assert together_s == pytest.approx(apart_s)
