"""The simulation keeps what any step keeps: work, closed forms, and that more replicas are never slower."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.online_refiner.sizing import constants, scaling, shapes
from recipe.online_refiner.sizing.fleet import Group, Played, Pool, Setting, simulate
from recipe.online_refiner.sizing.replicas import Pace, Replica, Request

PACE = Pace(pass_s=1.0, token_s=0.1, context_s=0.001)
groups_of_any_kind = st.lists(
    st.tuples(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.lists(st.integers(1, 60), max_size=3)),
    min_size=1,
    max_size=6,
)


def pool(num_replicas: int = 1, **settings: float) -> Pool:
    return Pool(num_replicas=num_replicas, pace=PACE, **settings)


def play(placement: str, lengths: list, rollouts: int = 1, refiners: int = 1, **settings: object) -> Played:
    groups = [
        Group(
            responses=[Request(prompt=7, answer=length) for length in answers],
            refinements=[Request(prompt=20, answer=length) for length in refined],
        )
        for answers, refined in lengths
    ]
    return simulate(
        Setting(rollout=pool(rollouts), refiner=pool(refiners), placement=placement, **settings),  # type: ignore[arg-type]
        groups,
    )


def by_passes(requests: list[Request], pace: Pace, max_running: int) -> float:
    """Play one replica as plainly as it can be: pass by pass, token by token."""
    waiting, running, clock = list(requests), [], 0.0
    while waiting or running:
        unread = 0
        while waiting and len(running) < max_running:
            running.append([waiting.pop(0), 0])
            unread += running[-1][0].prompt
        context = sum(one.prompt + one.gained * done for one, done in running)
        computed = sum(one.computed for one, _ in running)
        clock += pace.pass_s + pace.token_s * (computed + unread) + pace.context_s * context
        running = [[one, done + 1] for one, done in running if done + 1 < one.num_passes]
    return clock


@given(st.lists(st.integers(1, 80), min_size=1, max_size=12), st.integers(1, 5), st.sampled_from([1.0, 1.7]))
def test_one_replica_is_its_sum_of_passes(answers: list[int], max_running: int, gained: float) -> None:
    requests = [Request(prompt=5 * index, answer=one, gained=gained, computed=3) for index, one in enumerate(answers)]
    replica = Replica(pace=PACE, max_running=max_running)
    for request in requests:
        replica.add(request)
    done = replica.advance(1e9)
    assert {request for _, request in done} == set(requests)
    assert done[-1][0] == pytest.approx(by_passes(requests, PACE, max_running))


def test_the_closed_form_of_equal_requests() -> None:
    size, prompt, answer = 16, 10, 20
    replica = Replica(pace=PACE)
    for _ in range(size):
        replica.add(Request(prompt=prompt, answer=answer))
    contexts = size * (prompt * answer + answer * (answer - 1) / 2)
    seconds = answer * (1.0 + 0.1 * size) + 0.1 * size * prompt + 0.001 * contexts
    assert replica.advance(1e9)[-1][0] == pytest.approx(seconds)


def test_what_comes_in_the_middle_begins_with_the_next_pass() -> None:
    replica = Replica(pace=Pace(pass_s=1.0, token_s=0.0))
    replica.add(Request(prompt=1, answer=10))
    assert replica.advance(3.5) == [] and replica.clock == 4.0
    replica.add(Request(prompt=1, answer=2))
    assert [time for time, _ in replica.advance(100.0)] == [6.0, 10.0]


def test_a_full_cache_lets_requests_wait() -> None:
    replica = Replica(pace=Pace(pass_s=1.0, token_s=0.0), kv_tokens=25)
    for _ in range(3):
        replica.add(Request(prompt=2, answer=10))
    assert [time for time, _ in replica.advance(100.0)] == [10.0, 10.0, 20.0]


@pytest.mark.parametrize("placement", ["colocated", "dedicated", "shared"])
@given(lengths=groups_of_any_kind)
def test_work_is_conserved_and_replicas_help(placement: str, lengths: list) -> None:
    played = play(placement, lengths)
    assert played.num_requests == sum(len(answers) + len(refined) for answers, refined in lengths)
    assert played.exposed_s >= 0 and played.hidden_s >= 0
    bare = play(placement, [(answers, []) for answers, _ in lengths], stage_s=1.0)
    assert bare.exposed_s == 0 == bare.hidden_s
    alone = by_passes([Request(prompt=7, answer=one) for answers, _ in lengths for one in answers], PACE, 256)
    assert bare.rollout_s == pytest.approx(alone)
    if placement != "shared":
        assert played.rollout_s == pytest.approx(alone), "who refines elsewhere does not slow the rollout"


@given(lengths=groups_of_any_kind, more=st.integers(2, 4))
def test_more_replicas_are_not_slower(lengths: list, more: int) -> None:
    for placement in ("colocated", "dedicated"):
        few, many = (play(placement, lengths, refiners=number) for number in (1, len(lengths) * 3 + more))
        assert many.exposed_s <= few.exposed_s + 1e-9
    assert play("colocated", lengths, rollouts=30).rollout_s <= play("colocated", lengths).rollout_s + 1e-9


def test_a_dedicated_refiner_hides_what_a_colocated_one_shows() -> None:
    lengths = [([10], [10]), ([200], [10])]
    colocated, dedicated = (
        play(placement, lengths, stage_s=2.0, reward_s=0.5) for placement in ("colocated", "dedicated")
    )
    assert 0 < dedicated.exposed_s < colocated.exposed_s
    assert dedicated.hidden_s > 0 == colocated.hidden_s
    alone = by_passes([Request(prompt=20, answer=10)], PACE, 256)
    assert dedicated.exposed_s == pytest.approx(alone + 0.5 + 2.0)
    waiting = play("dedicated", lengths, stage_s=2.0, reward_s=0.5, streams=False)
    assert waiting.exposed_s == pytest.approx(colocated.exposed_s)


def test_engines_that_share_cores_slow_each_other() -> None:
    lengths = [([10], [100]), ([100], [1])]
    apart, together = (play("dedicated", lengths, shares_cores=shares) for shares in (False, True))
    assert together.rollout_s > apart.rollout_s * 1.5
    same_end = [([50], [50]), ([50], [50])]
    apart, together = (play("dedicated", same_end, shares_cores=shares) for shares in (False, True))
    assert together.exposed_s == pytest.approx(apart.exposed_s)


def test_separate_async_shows_what_its_refiner_is_too_slow_for() -> None:
    draw = random.Random(1)
    lengths = [([draw.randint(20, 60) for _ in range(4)], [100] * 4) for _ in range(160)]
    common = {"rollouts": 4, "batch": 8, "num_in_flight": 32}
    slow, fast = (play("dedicated", lengths, refiners=number, **common) for number in (1, 64))
    assert 0 < fast.exposed_s < 0.5 * slow.exposed_s and slow.rollout_s == fast.rollout_s
    bare = play("dedicated", [(answers, []) for answers, _ in lengths], **common)
    assert bare.exposed_s == 0 and bare.rollout_s == slow.rollout_s


def test_estimates_of_a_gpu() -> None:
    shape = shapes.read(
        {
            **{"num_hidden_layers": 10, "hidden_size": 100, "num_attention_heads": 10, "vocab_size": 1000},
            "intermediate_size": 400,
        }
    )
    known = constants.of_gpu("h100", shape, shape, sizes=(1, 2))
    read_s = 2 * shape.num_parameters / (0.6 * 3.35e12)
    assert known.rollout.pass_s == pytest.approx(0.005 + read_s)
    assert known.refiner.pass_s == pytest.approx(0.005 + read_s / 2)
    assert known.rollout.token_s == pytest.approx(2 * shape.num_active / (0.5 * 989e12))
    assert known.score_tokens_per_s == 4 * known.train_tokens_per_s


def test_constants_are_written_and_read(tmp_path: Path) -> None:
    known = constants.Constants(rollout=PACE, refiner=PACE, stage_s=2.0, origin="a test", train_tokens_per_s=9.0)
    known.write(tmp_path / "c.json")
    assert constants.read(str(tmp_path / "c.json")) == known
    with pytest.raises(ValueError, match="set one of h100, a100, or a file of size_fleet"):
        constants.read(str(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("gpus", [8, 64])
def test_the_fewest_replicas_that_are_enough(gpus: int) -> None:
    pace = Pace(pass_s=0.02, token_s=1e-4)
    known = constants.Constants(rollout=pace, refiner=pace, stage_s=0.1, train_tokens_per_s=1e4)
    work = scaling.Workload(num_prompts=4 * gpus, response=800, longest=2000, refined=0.5, gained=40.0, computed=8.0)
    found = scaling.size(work, known, scaling.Fleet(gpus=gpus, placement="dedicated"))
    assert found.is_enough and found.exposed_share < 0.05 and 1 < found.refiner_replicas < gpus
    half = scaling.Fleet(gpus=gpus, placement="dedicated", replicas=found.refiner_replicas // 2)
    fewer = scaling.size(work, known, half)
    assert not fewer.is_enough
    shared = scaling.size(work, known, scaling.Fleet(gpus=gpus, placement="shared"))
    assert shared.refiner_gpus == 0 and shared.refiner_replicas == 0


@pytest.mark.parametrize(
    ("passes", "seconds"), [((True, False), 0.01), ((False, True), 0.04), ((True, True), 0.05), ((False, False), 0.0)]
)
def test_the_actor_works_on_refinements_too(passes: tuple[bool, bool], seconds: float) -> None:
    pace = Pace(pass_s=0.02, token_s=1e-4)
    known = constants.Constants(rollout=pace, refiner=pace, train_tokens_per_s=25.0, score_tokens_per_s=100.0)
    work = scaling.Workload(
        num_prompts=4, group_size=8, prompt=50, response=100, longest=100, sigma=0.0, refined=1.0, cap=2
    )
    fleet = scaling.Fleet(gpus=2, placement="colocated")
    none, used = (scaling.size(replace(work, used=share, actor_passes=passes), known, fleet) for share in (0.0, 0.25))
    num_tokens = 4 * 2 * 0.25 * (50 + 100)  # a refinement is as long as its response, behind the prompt alone
    assert none.refined_s == 0 and used.refined_s == pytest.approx(num_tokens * seconds / 2)
    assert used.step_s - none.step_s == pytest.approx(used.refined_s)
    assert used.exposed_s == pytest.approx(none.exposed_s), "the refiner is waited for as long"
