"""``refiner.budget``: which responses a step can afford to refine, and what is learned for the next one."""

import json
import math
import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from recipe.online_refiner.method.pairs import FAILURES, Pair, Verdict
from recipe.online_refiner.refine.budget import FORGET, NUM_BANDS, NUM_FIRST, Budget, Kind, Rollouts, bands


def rollouts(rewards: Mapping[int, float], solved: Collection[int] = (), num_tokens: int = 1000) -> Rollouts:
    """Return a step whose rows 0, 1; 2, 3 and so on answer one prompt each."""
    groups = {row: f"prompt {row // 2}" for row in rewards}
    return Rollouts(rewards=rewards, groups=groups, solved=solved, num_tokens=num_tokens)


def refined(reward: float, verdict: Verdict, num_tokens: int) -> Pair:
    return Pair(reward=reward, verdict=verdict, num_generated_tokens=num_tokens)


def test_what_was_accepted_lately_goes_first_and_the_rest_is_left_out() -> None:
    kinds = {
        "-0.3, none solved": Kind(asked=10, accepted=9, tokens=1000),
        "-0.6, none solved": Kind(asked=10, accepted=0, tokens=1000),
        "-0.3, one solved": Kind(asked=10, accepted=5, tokens=1000),
    }
    step = rollouts({0: -0.6, 1: -0.3, 2: -0.3, 3: 1.0, 4: -0.3, 5: -0.6}, solved={3}, num_tokens=3000)
    for share, expected in ((0.02, set()), (0.07, {1, 4}), (0.1, {1, 2, 4}), (0.5, {0, 1, 2, 4, 5})):
        assert Budget(share=share, kinds=kinds).choose(step) == expected, share
    assert Budget(share=0.1, kinds=kinds).kept(step, {1, 4}) == pytest.approx(
        2 * (10 / 12) / (2 * 10 / 12 + 6 / 12 + 2 * 1 / 12)
    )


def test_a_kind_whose_refinements_are_short_goes_before_one_that_is_accepted_as_often() -> None:
    kinds = {
        "-0.3, none solved": Kind(asked=9, accepted=4, tokens=1800),
        "-0.6, none solved": Kind(asked=9, accepted=4, tokens=90),
    }
    assert Budget(share=0.1, kinds=kinds).choose(rollouts({0: -0.3, 2: -0.6})) == {2}


def test_groups_take_turns_and_a_new_kind_is_tried() -> None:
    step = rollouts(dict.fromkeys(range(6), -1.0), num_tokens=600)
    kinds = {"-1.0, none solved": Kind(asked=4, accepted=2, tokens=400)}
    assert {row // 2 for row in Budget(share=0.34, kinds=kinds).choose(step)} == {0, 1, 2}, "one of each"
    known = Budget(share=0.1, kinds={"-1.0, none solved": Kind(asked=100, accepted=10, tokens=10_000)})
    assert known.choose(rollouts({0: -1.0, 2: -0.9}, num_tokens=1000)) == {2}, "nobody knows whether -0.9 pays"


def test_equal_responses_are_chosen_by_lot_and_not_by_their_place() -> None:
    """Rows are in the order of ranks and of lengths: the first ones must not be refined more often than others."""
    step = rollouts({row: (0.0, 1.0)[row % 2] for row in range(64)}, solved=range(1, 64, 2), num_tokens=6400)
    budget, chosen = Budget(share=0.1, kinds={"0.0, one solved": Kind(asked=10, accepted=3, tokens=1000)}), Counter()
    for number in range(200):
        chosen.update(budget.choose(replace(step, step=number)))
    assert set(chosen) == set(range(0, 64, 2)), "each has its turn"
    first = sum(num for row, num in chosen.items() if row < 32)
    assert first / chosen.total() == pytest.approx(0.5, abs=0.06)


def test_the_choice_does_not_depend_on_the_order_of_rows() -> None:
    keys = [f"{uid}_{session}_0" for uid in "abcd" for session in range(4)]
    found = list[set[str]]()
    for seed in range(3):
        shuffled = random.Random(seed).sample(keys, len(keys))
        step = Rollouts(
            rewards=dict.fromkeys(range(16), -0.5),
            groups={row: key[0] for row, key in enumerate(shuffled)},
            solved=(),
            num_tokens=1600,
            step=7,
            keys=dict(enumerate(shuffled)),
        )
        chosen = Budget(share=0.3, kinds={"-0.5, none solved": Kind(asked=4, accepted=1, tokens=400)}).choose(step)
        found.append({shuffled[row] for row in chosen})
    assert found[0] == found[1] == found[2] and 0 < len(found[0]) < 16


@pytest.mark.parametrize(("scale", "center"), [(1e-4, 0.0), (10.0, 0.0), (1e4, 300.0)])
def test_a_reward_of_any_scale_teaches_which_responses_pay(scale: float, center: float) -> None:
    """Refinements in the lower half are accepted with probability 0.1, in the upper half 0.01; the mean is 0.055."""
    draw, budget, asked, accepted = random.Random(0), Budget(share=0.1), 0, 0
    for number in range(80):
        places = [draw.gauss(0, 1) for _ in range(512)]
        step = rollouts({row: scale * (center + one) for row, one in enumerate(places)}, num_tokens=512 * 100)
        step.step = number
        assert len({*step.kinds().values()}) <= NUM_BANDS
        chosen = budget.choose(step)
        good = {row for row in chosen if draw.random() < (0.1 if places[row] < 0 else 0.01)}
        verdicts = {row: Verdict.ACCEPTED if row in good else Verdict.NOT_BETTER for row in chosen}
        budget.observe(step, {row: refined(0.0, verdict, 100) for row, verdict in verdicts.items()})
        if number >= 20:
            asked, accepted = asked + len(chosen), accepted + len(good)
    assert accepted / asked > 0.075


def test_few_rewards_are_kinds_by_themselves_and_many_by_their_rank() -> None:
    assert bands({3: -1.0, 5: -0.0, 6: 0.0, 7: 0.25}) == {3: "-1.0", 5: "0.0", 6: "0.0", 7: "0.25"}
    assert {*bands({row: (-0.04, 0.04)[row % 2] for row in range(10)}).values()} == {"-0.04", "0.04"}
    assert Counter(bands({row: row**3 for row in range(80)}).values()) == {f"eighth {n}": 10 for n in range(1, 9)}
    tiers = bands({row: -1.0 if row < 40 else row / 80 for row in range(80)})
    assert {tiers[row] for row in range(40)} == {"eighth 3"}, "equal rewards are one kind"
    assert {tiers[row] for row in range(40, 80)} == {"eighth 5", "eighth 6", "eighth 7", "eighth 8"}
    assert bands({}) == {}


def test_a_response_without_a_number_is_not_chosen() -> None:
    step = rollouts({row: math.nan if row % 3 else 0.1 * row for row in range(60)}, num_tokens=60_000)
    assert {*step.kinds()} == {*range(0, 60, 3)} and len({*step.kinds().values()}) == NUM_BANDS
    assert Budget(share=0.5).choose(step) <= {*range(0, 60, 3)}


def test_a_state_with_other_names_of_kinds_still_loads(tmp_path: Path) -> None:
    kinds = {"-0.3, none solved": {"asked": 4.0, "accepted": 2.0, "tokens": 90.0}, "-0.0, none solved": {}}
    (tmp_path / "budget.json").write_text(json.dumps({"share": 0.1, "saved": 5.0, "kinds": kinds}))
    budget = Budget(share=0.1)
    budget.load(tmp_path / "budget.json")
    assert (budget.saved, budget.kinds["-0.3, none solved"].accepted) == (5.0, 2.0)
    assert budget.kept(rollouts({0: -0.3}), {0}) == 1.0


def test_tokens_that_were_spent_too_much_are_saved_and_some_that_were_not_are_kept() -> None:
    budget, step = Budget(share=0.1), rollouts({0: -1.0, 2: -1.0}, num_tokens=900)
    budget.observe(step, {0: refined(-1.0, Verdict.ACCEPTED, 250)})
    assert budget.saved == pytest.approx(-150)
    assert budget.choose(step) == set(), "100 tokens, and 150 are owed"
    budget.observe(step, {})
    assert budget.saved == pytest.approx(-50)
    for _ in range(9):
        budget.observe(step, {})
    assert budget.saved == pytest.approx(250), "a refinement's worth, however many were not used"
    budget.observe(rollouts({0: -1.0}, num_tokens=9000), {})
    budget.observe(rollouts({0: -1.0}, num_tokens=9000), {})
    assert budget.saved == pytest.approx(1000), "or a step's"
    assert budget.kinds["-1.0, none solved"].asked == pytest.approx(FORGET**12)


def test_over_a_run_no_more_is_spent() -> None:
    budget, spent = Budget(share=0.2), 0.0
    for number in range(200):
        step = rollouts({row: -1.0 + row % 3 / 10 for row in range(8)}, num_tokens=800)
        chosen = budget.choose(step)
        cost = {row: 40 + (7 * number + 31 * row) % 200 for row in chosen}  # 140 on average, responses have 100
        budget.observe(step, {row: refined(-1.0, Verdict.ACCEPTED, cost[row]) for row in chosen})
        spent += sum(cost.values())
    assert 0.9 * 40_000 < spent < 40_000 + 240, "a fifth of all, but for the last one"


@pytest.mark.parametrize("verdict", [Verdict.NO_ANSWER, Verdict.TOO_LONG, Verdict.TIMEOUT, Verdict.WORKER])
def test_what_brings_no_tokens_is_neither_cheap_nor_takes_others_places(verdict: Verdict) -> None:
    budget, step = Budget(share=0.2), rollouts({row: -row % 2 / 2 for row in range(64)}, num_tokens=64 * 100)
    for _ in range(12):
        chosen = budget.choose(step)
        good = sorted(row for row in chosen if step.rewards[row] == 0.0)
        before, pairs = budget.saved, dict.fromkeys(chosen - {*good}, refined(-0.5, verdict, 0))
        pairs |= {
            row: refined(0.0, Verdict.NOT_BETTER if n % 5 else Verdict.ACCEPTED, 100) for n, row in enumerate(good)
        }
        budget.observe(step, pairs)
        is_asked = verdict in FAILURES
        spent = 100 * (len(good) + is_asked * (len(chosen) - len(good)))
        assert budget.saved == pytest.approx(min(1600, before + 1600 - spent)), "who was asked has cost something"
    assert len(good) == len(chosen) >= 16, "all are of the kind of which a fifth is accepted"


def test_a_group_has_no_more_than_its_limit_and_the_best_of_it_go_first() -> None:
    kinds = {
        "-0.6, none solved": Kind(asked=10, accepted=0, tokens=1000),
        "-0.3, none solved": Kind(asked=10, accepted=9, tokens=1000),
    }
    step = rollouts({0: -0.6, 1: -0.3, 2: -0.3, 3: -0.6, 4: -0.6, 5: -0.3}, num_tokens=9000)
    step.most = {"prompt 0": 1, "prompt 1": 0, "prompt 2": None}
    budget = Budget(share=0.5, kinds=kinds)
    chosen = budget.choose(step)
    assert chosen == {1, 4, 5}
    good, bad = 10 / 12, 1 / 12
    assert budget.kept(step, chosen) == pytest.approx((2 * good + bad) / (3 * good + 3 * bad))


def test_the_first_step_sees_what_a_refinement_costs() -> None:
    budget, step, spent = Budget(share=0.2), rollouts(dict.fromkeys(range(64), 0.0), num_tokens=64 * 200), 0
    for _ in range(12):
        chosen = budget.choose(step)
        assert chosen, "no step goes without"
        budget.observe(step, dict.fromkeys(chosen, refined(0.0, Verdict.ACCEPTED, 8 * 200)))
        spent += 8 * 200 * len(chosen)
    assert 0.9 < spent / (12 * 3200) <= 1
    shaped = rollouts({row: row / 32 for row in range(64)}, num_tokens=64 * 200)
    assert len(Budget(share=0.2).choose(shaped)) == NUM_FIRST, "however many kinds there are"


def test_the_first_step_tries_kinds_by_lot_whether_they_are_rare_or_not() -> None:
    rare = {row: float(row) for row in range(6)}
    step = rollouts({**rare, **{row: 6.0 + row % 2 for row in range(6, 64)}}, num_tokens=64 * 200)
    step.groups = {row: f"prompt {row}" for row in step.rewards}
    tried = Counter[float]()
    for number in range(100):
        chosen = Budget(share=0.9).choose(replace(step, step=number))
        assert len({step.rewards[row] for row in chosen}) == len(chosen) == NUM_FIRST, "one of each kind"
        tried.update(step.rewards[row] for row in chosen)
    assert min(tried[6.0], tried[7.0]) > 90, "nearly every lot has frequent kinds first"


def test_a_refinement_that_costs_more_than_steps_leave_is_saved_for() -> None:
    budget, step = Budget(share=0.02), rollouts(dict.fromkeys(range(16), 0.0), num_tokens=16 * 200)
    chosen = list[set[int]]()
    for _ in range(20):
        chosen.append(budget.choose(step))
        budget.observe(step, dict.fromkeys(chosen[-1], refined(0.0, Verdict.ACCEPTED, 300)))
    assert 3 <= sum(map(len, chosen)) <= 20 * 65.4 / 300 + 1


def test_a_resumed_run_knows_what_it_knew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    budget, step = Budget(share=0.1), rollouts({0: -1.0})
    budget.observe(step, {0: refined(-1.0, Verdict.ACCEPTED, 30)})
    budget.save(tmp_path / "step" / "budget.json")
    again, other, new = Budget(share=0.1), Budget(share=0.3), Budget(share=0.1)
    again.load(tmp_path / "step" / "budget.json")
    assert caplog.messages == []
    other.load(tmp_path / "step" / "budget.json")
    new.load(tmp_path / "none.json")
    assert [
        one.startswith(f"refiner.budget={share} learns anew")
        for one, share in zip(caplog.messages, (0.3, 0.1), strict=True)
    ] == [True, True]
    assert again == budget
    assert other == Budget(share=0.3), "another share begins again"
    assert new == Budget(share=0.1)


def test_a_kind_of_which_nothing_is_known_is_accepted_half_of_the_time() -> None:
    assert Kind().chance == 0.5
    assert Kind(asked=2, accepted=2).chance == 0.75 and Kind(asked=2).chance == 0.25
