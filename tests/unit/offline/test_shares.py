"""The check before a run: what it says, and which problems it takes."""

from argparse import Namespace
from collections.abc import Iterable

import numpy as np
import pytest

from recipe.offline.inputs import choose, config_of
from recipe.offline.shares import OUTCOMES, Found, interval
from recipe.online_refiner.method.pairs import Refinement, Rollout, Verdict


def group(problem: int, *rewards: float) -> list[Rollout]:
    return [
        Rollout(
            key=f"{problem}_{n}_0", messages=[], prompt_ids=[1], response_ids=[3, 2], reward=reward, reward_columns={}
        )
        for n, reward in enumerate(rewards)
    ]


def refinements(rewards: Iterable[float | None]) -> list[Refinement]:
    """Return a refinement for each reward; None: of a right answer."""
    verdicts = {True: Verdict.ACCEPTED, False: Verdict.NOT_BETTER}
    return [
        Refinement(verdict=Verdict.MAX_REWARD)
        if reward is None
        else Refinement(verdict=verdicts[reward > 0], token_ids=[4, 2], reward=reward)
        for reward in rewards
    ]


def test_what_becomes_of_a_wrong_answer() -> None:
    old = Rollout(key="0_0_0", messages=[], prompt_ids=[1], response_ids=[3, 2], reward=-0.3, reward_columns={})
    refinements = {
        "improved": Refinement(verdict=Verdict.ACCEPTED, token_ids=[4, 2], reward=0.0),
        "worsened": Refinement(verdict=Verdict.NOT_BETTER, token_ids=[4, 2], reward=-1.0),
        "repeated": Refinement(verdict=Verdict.NOT_BETTER, token_ids=[3, 4, 2], reward=-0.3, is_repeated=True),
        "truncated": Refinement(verdict=Verdict.TRUNCATED),
        "": Refinement(verdict=Verdict.NOT_BETTER, token_ids=[4, 2], reward=-0.3),
        "none": Refinement(verdict=Verdict.TIMEOUT),
    }
    for name, new in refinements.items():
        assert [outcome for outcome, holds in OUTCOMES.items() if holds(old, new)] == [name] * (name in OUTCOMES)


def test_refining_is_compared_with_answering_again() -> None:
    found = Found()
    for problem in range(20):
        ways = {"always": refinements([0.5, 0.5, None]), "never": refinements([0.0, 0.0, None])}
        found.add(group(problem, 0.0, 0.0, 1.0), ways)
    lines = found.describe().splitlines()
    assert lines[0] == "40 of 60 answers were refined (20 of 20 problems)"
    assert lines[1] == "A second answer scores higher than the first: 50.0% (50.0% to 50.0%)"
    assert lines[5].startswith("| `always` | 100.0% (100.0% to 100.0%) |")
    assert lines[6].startswith("| `never` | 0.0% (0.0% to 0.0%), -100.0% (-100.0% to -100.0%) |")
    assert lines[-6] == "`always` against a second answer: +50.0% (+50.0% to +50.0%, 40 answers): it wins"
    assert lines[-5] == "`never` against a second answer: -50.0% (-50.0% to -50.0%, 40 answers): it loses"


def test_an_answer_that_is_compared_does_not_choose_its_group() -> None:
    found = Found()
    for problem in range(10):
        found.add(group(problem, 0.0, 0.0, 0.0), {"general": refinements([0.5] * 3)})
    for problem in range(10, 20):
        found.add(group(problem, 0.0, 0.0, 1.0), {"general": refinements([0.5, 0.5, None])})
    # Six pairs of each first problem, none solved; of each other one two with the right answer, set aside, and two with
    # the wrong one, where the group is solved.
    unsolved, solved = (6 * 1 + 2 * 0) / (6 + 2), 1
    _, first, second = found.verdicts()
    assert first.startswith(f"`general` against a second answer where no answer is right: {unsolved:+.1%} (")
    assert first.endswith(", 50 answers): it wins")
    assert second == (
        f"`general` against a second answer where one is right: {solved:+.1%} (+100.0% to +100.0%, 20 answers): it wins"
    )


def test_a_way_has_keys_of_its_own() -> None:
    keys = ["temperature=1", "reject_leaks=false"]
    arguments = Namespace(highest_reward=1.0, max_new_tokens=8, samples=4, refiner=keys)
    config = config_of("apps+feedback+sibling+temperature=0.5", arguments)
    assert (config.template, config.context) == ("apps", ["feedback", "sibling"])
    assert (config.temperature, config.reject_leaks) == (0.5, False)
    assert (config.skip_reward_at_least, config.response_length) == (1.0, 8)


def test_too_few_answers_say_so() -> None:
    found = Found()
    found.add(group(0, 0.0, 1.0), {"general": refinements([0.0, None])})
    found.add(group(1, 0.0, 0.0), {"general": refinements([0.5, 0.5])})
    assert found.describe().endswith("too close to call; run more --problems")


def test_three_of_six_problems_tell_nothing() -> None:
    found = Found()
    for problem in range(6):
        found.add(group(problem, 0.0, 0.0), {"general": refinements([float(problem < 3)] * 2)})
    assert found.describe().endswith("too close to call; run more --problems")


def test_one_answer_to_each_problem_is_compared_with_none() -> None:
    found = Found()
    assert found.verdicts() == [], "no problem is done, or the first ones are all solved"
    found.add(group(0, 0.0), {"general": refinements([0.5])})
    found.add(group(1, 1.0), {"general": refinements([None])})
    assert "nother answer" not in found.describe()
    assert Found().describe() == "nothing was refined: none of 0 answers has a reward below --highest-reward"


def test_what_the_leak_rule_costs_is_counted() -> None:
    found = Found()
    for problem, reward in enumerate([0.5, 0.5, 0.0, None]):  # the last one's reward function failed
        leak = Refinement(verdict=Verdict.LEAK, text="It got 0.", reward=reward)
        found.add(group(problem, 0.0), {"general": [leak], "apps": refinements([0.5])})
    (line,) = found.leaks()
    assert line.startswith("`general`: 4 refinements rejected as leaks, 2 of them with a higher reward (")
    assert line in found.describe()


def test_the_yield_of_several_refinements() -> None:
    found = Found()
    for problem, num_better in enumerate([0, 1, 2, 4] * 5):
        (one,) = refinements([0.5 if num_better else 0.0])
        one.num_samples, one.num_better = 4, num_better
        found.add(group(problem, 0.0), {"general": [one]})
    (line,) = found.yields()
    # Of 4 draws 1 is better: 2 of them have it in 3 of 6 cases; 2 are better: 2 miss both in 1 of 6.
    shares = [(0 + 1 / 4 + 2 / 4 + 1) / 4, (0 + 3 / 6 + 5 / 6 + 1) / 4, (0 + 3 / 4 + 1 + 1) / 4, 3 / 4]
    words = [f"{k}: {share:.1%} (" for k, share in enumerate(shares, 1)]
    assert line.startswith(f"`general`, improved by the best of {words[0]}") and all(word in line for word in words)
    assert line in found.describe().splitlines()


def test_problems_are_drawn_by_the_seed() -> None:
    assert choose(5, 0, seed=1) == choose(5, 5, seed=1) == choose(5, 9, seed=1) == [0, 1, 2, 3, 4]
    some = choose(1000, 10, seed=1)
    assert some == sorted(set(some)) == choose(1000, 10, seed=1) != choose(1000, 10, seed=2) and len(some) == 10
    with pytest.raises(ValueError, match="--problems -1: give 0 or more"):
        choose(5, -1, seed=1)


def test_answers_to_one_problem_count_as_one_draw() -> None:
    values = np.array([1.0, 0.0] * 50)
    mean, low, high = interval(values, np.arange(100))
    assert mean == 0.5 and (low, high) == (pytest.approx(0.4, abs=0.001), pytest.approx(0.6, abs=0.001))  # 1.98 / 20
    clustered = interval(np.repeat([1.0, 0.0], 50), np.repeat([0, 1, 2, 3], 25))
    assert clustered == (0.5, 0.0, 1.0), "four problems, two of them right each time"
    assert interval(values - values, np.arange(100)) == (0.0, 0.0, 0.0)


def test_few_problems_say_little() -> None:
    values = np.array([0.75, 0.75, 0.75, 0.25, 0.25, 0.25])
    mean, low, high = interval(values, np.arange(6))
    width = 2.5706 * np.std(values, ddof=1) / 6**0.5  # Student's t with 5 degrees of freedom
    assert mean == 0.5 and (low, high) == (pytest.approx(0.5 - width, abs=0.001), pytest.approx(0.5 + width, abs=0.001))
    alike = interval(np.repeat(values, 2), np.repeat(np.arange(6), 2))
    assert alike == (pytest.approx(mean), pytest.approx(low), pytest.approx(high)), "answers that are alike"
    uneven = interval(np.array([0.05, 0.05, 0.0]), np.array([7, 7, 3]), least=-1.0)
    # Sums less their share of the mean: 0.05 times 2 - 4/3 and 0 - 2/3.
    assert uneven[1] == pytest.approx(0.05 * (2 / 3 - 12.706 * 2**0.5 * (8 / 9) ** 0.5 / 3), rel=0.02)
    assert interval(np.array([0.5]), np.zeros(1), least=-1.0) == (0.5, -1.0, 1.0), "one says nothing"
