"""A step of several mini-batches: counts add up, means are weighted by what they are means of."""

import math
import re

import pytest

from recipe.online_refiner import metrics
from recipe.online_refiner.rollout import Outcome
from recipe.online_refiner.step import StepState


def part(num_rollouts: int, accepted: dict[int, int], **values: float) -> StepState:
    """Return a mini-batch with accepted refinements, by row, of so many tokens."""
    outcomes = {
        row: Outcome(verdict="accepted", is_used=True, num_refined_tokens=accepted[row])
        if row in accepted
        else Outcome(verdict="not_better", num_refined_tokens=1)
        for row in range(num_rollouts)
    }
    own = {"refiner/num_accepted": len(accepted), "refiner/skipped/max_reward": 1}
    return StepState(
        rows=list(range(num_rollouts)),
        outcomes=outcomes,
        nll=dict.fromkeys(outcomes, 1.0),
        metrics={**metrics.zeros(), **own, **{name.replace("__", "/"): value for name, value in values.items()}},
    )


def test_counts_add_up_and_means_are_weighted() -> None:
    parts = [
        part(6, {0: 3}, reward__mean=1.0, refiner__reward_gain=0.5, constraint__cross_entropy_accepted=2.0),
        part(2, {0: 4, 1: 5}, refiner__reward_gain=2.0, constraint__cross_entropy_accepted=1.0),
    ]
    step = metrics.of_step(parts)
    assert step["refiner/num_accepted"] == 3
    assert step["refiner/skipped/max_reward"] == 2, "verl's aggregator would take the largest: the name has a max in it"
    assert step["reward/mean"] == 6 / 8
    assert step["refiner/reward_gain"] == (0.5 + 2 * 2.0) / 3
    assert step["constraint/cross_entropy_accepted"] == (3 * 2.0 + 9 * 1.0) / 12
    assert not any(name.startswith("timing_s/") for name in step), "seconds are the step's already"
    assert set(step) == {name for name in metrics.MEANING if not name.startswith("timing_s/")}


def test_a_mean_over_nothing_is_that_of_the_other_parts() -> None:
    unknown = part(4, {}, kl_ref__k3=math.nan, refiner__staleness_max=0)
    known = part(4, {0: 1}, kl_ref__k3=0.25, tokens__kl_ref=8, refiner__staleness_mean=3, refiner__staleness_max=3)
    step = metrics.of_step([unknown, known])
    assert (step["kl_ref/k3"], step["refiner/staleness_mean"], step["refiner/staleness_max"]) == (0.25, 3, 3)
    assert math.isnan(metrics.of_step([unknown, unknown])["kl_ref/k3"])
    by_verl = [part(4, {}, kl_ref__k3=value) for value in (0.1, 0.3)]
    assert metrics.of_step(by_verl)["kl_ref/k3"] == pytest.approx(0.2), "verl's own worker counts no tokens of ours"


def test_a_step_of_one_mini_batch_is_that_mini_batch() -> None:
    one = part(3, {1: 2}, reward__mean=-1.0, sandbox__runs_per_s=7.0, actor__sft_cross_entropy=0.5)
    assert metrics.of_step([one]) == {
        name: value for name, value in one.metrics.items() if not name.startswith("timing_s/")
    }


def test_how_far_weights_lie_behind() -> None:
    assert metrics.staleness_metrics(5, [4, 3, 2]) == {"refiner/staleness_mean": 1.0, "refiner/staleness_max": 2}
    assert set(metrics.staleness_metrics(5, []).values()) == {0}


def test_drafts_are_told_position_by_position() -> None:
    found = metrics.draft_metrics(4, 12, 4, 2, 0)  # four drafts of three tokens
    assert {name: value for name, value in found.items() if value} == {
        **{"refiner/num_drafts": 4, "refiner/drafted_tokens": 12, "refiner/spec_accept_rate": 0.5},
        **{"refiner/spec_accept_length": 2.5, "refiner/spec_accept_at/1": 1.0, "refiner/spec_accept_at/2": 0.5},
    }
    assert set(metrics.draft_metrics(0, 0).values()) == {0}
    assert metrics.draft_metrics(1, 20, *[1] * 20).keys() <= metrics.MEANING.keys(), "longer drafts have a rest"


def test_drafts_and_memory_of_a_step() -> None:
    first = part(1, {}, **{"refiner__num_drafts": 1, "refiner__spec_accept_length": 1.0, "memory_gb__refine": 3.0})
    second = part(9, {}, **{"refiner__num_drafts": 3, "refiner__spec_accept_length": 3.0, "memory_gb__refine": 2.0})
    step = metrics.of_step([first, second])
    assert (step["refiner/spec_accept_length"], step["memory_gb/refine"]) == (2.5, 3.0)


def test_every_tracker_takes_the_names() -> None:
    """MLflow's pattern; and on disk each of its metrics is a file, so that no name may be another one's folder."""
    names = set(metrics.MEANING)
    assert all(re.fullmatch(r"[/\w.\- :]+", name) for name in names)
    assert not [name for name in names if any(other.startswith(f"{name}/") for other in names)]


def test_what_a_step_may_have_is_shared() -> None:
    assert [StepState(num_parts=4).share(number) for number in (64, 2, 0)] == [16, 1, 0]
