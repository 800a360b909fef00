"""The numbers of a report, worked out by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.report import series
from recipe.report.arms import Arm
from recipe.report.costs import costs
from recipe.report.figures import spread_out
from recipe.report.runs import read_run

PENALTY = series.QUANTITIES[-1]


def arm(*paths: Path) -> Arm:
    return Arm(name="x", runs=[read_run(path) for path in paths])


def test_a_curve_is_mean_and_sample_deviation_over_the_seeds_that_have_the_step(write_run: Callable) -> None:
    both = arm(write_run("a", [0.0, 1.0, 2.0]), write_run("b", [1.0, 1.0]))
    points = series.curve(both, series.REWARD, 1)
    assert [(step, point.mean, point.num_runs) for step, point in points.items()] == [
        (1, 0.5, 2),
        (2, 1.0, 2),
        (3, 2.0, 1),
    ]
    assert [point.spread for point in points.values()] == [pytest.approx(0.5**0.5), 0.0, None]
    assert (points[1].low, points[1].high) == (0.0, 1.0)


def test_what_is_no_number_leaves_a_gap(write_run: Callable) -> None:
    assert list(series.curve(arm(write_run("a", [0.0, None, float("nan"), 3.0])), series.REWARD, 1)) == [1, 4]


@pytest.mark.parametrize(
    ("quantity", "metrics", "is_measured"),
    [
        (series.CE_ACCEPTED, {"constraint/cross_entropy_accepted": 0.0, "refiner/num_accepted": 0}, False),
        (series.CE_ACCEPTED, {"constraint/cross_entropy_accepted": 0.7, "refiner/num_accepted": 1}, True),
        (series.IMPROVEMENT, {"refiner/improvement_ratio": 0.0, "refiner/num_attempted": 0}, False),
        (series.IMPROVEMENT, {"refiner/improvement_ratio": 0.0, "refiner/num_attempted": 8}, True),
        (series.KL, {"kl_ref/k3": 0.0, "tokens/kl_ref": 0}, False),
        (series.KL, {"kl_ref/k3": 0.0, "tokens/kl_ref": 64}, True),
        (series.KL, {"kl_ref/k3": 0.1, "tokens/kl_ref": 0}, True),  # by a reference worker
        (PENALTY, {"constraint/penalty": 0.0, "constraint/eta": 0.0}, False),
        (PENALTY, {"constraint/penalty": 0.0, "constraint/eta": 0.1}, True),  # nothing was accepted
        (PENALTY, {"constraint/penalty": 0.0, "constraint/eta": 0.1, "actor/sft_cross_entropy": 1.0}, False),
        (PENALTY, {"constraint/penalty": -0.2, "constraint/eta": 0.1, "actor/sft_cross_entropy": 1.0}, True),
    ],
)
def test_the_zeros_of_a_mode_that_does_not_measure_are_no_values(
    quantity: series.Quantity, metrics: dict, is_measured: bool, write_run: Callable
) -> None:
    assert bool(series.curve(arm(write_run("a", [0.0], metrics=metrics)), quantity, 1)) is is_measured


def test_the_entropy_of_the_update_stands_in_for_that_of_the_stage_before(write_run: Callable) -> None:
    entropy = next(quantity for quantity in series.QUANTITIES if quantity.metric == "actor/entropy")
    values = [
        series.final_of(read_run(write_run(name, [0.0], metrics=metrics)), entropy)
        for name, metrics in {
            "both": {"actor/entropy": 0.5, "actor/entropy_loss": 0.2},
            "update": {"actor/entropy_loss": 0.2},
            "none": {},
        }.items()
    ]
    assert values == [0.5, 0.2, None]


def test_a_final_value_is_the_mean_over_the_last_tenth_of_a_run_and_three_steps_at_least(write_run: Callable) -> None:
    short, long = write_run("a", [9.0, 9.0, 1.0, 2.0, 3.0]), write_run("b", [9.0] * 36 + [3.0, 3.0, 5.0, 5.0])
    assert series.final_of(read_run(short), series.REWARD) == 2.0
    assert series.final_of(read_run(long), series.REWARD) == 4.0
    final = series.final(arm(short, long), series.REWARD)
    assert final and (final.mean, final.spread, final.low, final.high) == (3.0, pytest.approx(2**0.5), 2.0, 4.0)


def test_long_curves_are_running_means_over_the_steps_before(write_run: Callable) -> None:
    run = read_run(write_run("a", [0.0, 3.0, None, 5.0]))
    assert series.running_mean(run, series.REWARD, 3) == {1: 0.0, 2: 1.5, 4: 4.0}
    windows = [series.smoothing([read_run(write_run(f"long{num}", [0.0] * num))]) for num in (50, 51, 430)]
    assert windows == [1, 1, 10]


def test_validation_scores_are_found_by_their_name(write_run: Callable) -> None:
    others = {"val-core/apps/acc/best@2/std": 0.1, "val-aux/num_turns/mean": 2}
    both = write_run("both", [0.0], metrics={"val-core/apps/acc/best@2/mean": 0.5, "val-core/b/acc/mean@2": 0.4})
    means_first = ["val-core/b/acc/mean@2", "val-core/apps/acc/best@2/mean"]
    assert [quantity.metric for quantity in series.validations([read_run(both)])] == means_first
    path = write_run("a", [0.0], metrics={"val-core/apps/acc/mean@1": 0.5, **others})
    found = series.validations([read_run(path)])
    assert [quantity.metric for quantity in found] == ["val-core/apps/acc/mean@1"]
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "val-core/apps/acc/mean@1": 0.75}\n{"step": 3}\n')
    last = series.last(arm(path, write_run("b", [0.0])), found[0])
    assert last and (last.mean, last.num_runs) == (0.75, 1), "of the last step that was validated"


def test_costs_are_means_over_steps_and_the_rest_of_a_step_is_other(write_run: Callable) -> None:
    metrics = {"timing_s/step": 9.0, "timing_s/gen": 4.0, "timing_s/refine": 0.0, "tokens/rollout": 64}
    cheap = arm(write_run("a", [0.0] * 3, metrics=metrics))
    dear = arm(
        write_run("b", [0.0], metrics={**metrics, "timing_s/refine": 2.0}), write_run("c", [0.0], metrics=metrics)
    )
    found = costs([cheap, dear])
    assert [one.seconds for one in found] == [
        {"rollout": 4.0, "refine": 0.0, "other": 5.0},
        {"rollout": 4.0, "refine": 1.0, "other": 4.0},
    ]
    assert [one.tokens for one in found] == [{"policy writes": 64.0}] * 2
    assert [one.hours for one in found] == [27 / 3600, 9 / 3600]


def test_a_step_without_an_end_does_not_count_in_the_time_of_a_step(write_run: Callable) -> None:
    killed = write_run("a", [0.0], metrics={"timing_s/step": 9.0, "timing_s/gen": 4.0})
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "timing_s/gen": 6.0}\n')
    assert costs([arm(killed)])[0].seconds == {"rollout": 4.0, "other": 5.0}


def test_names_at_the_ends_of_lines_keep_their_distance() -> None:
    assert spread_out([0.2, 0.5], 0.1) == pytest.approx([0.2, 0.5])
    assert spread_out([0.5, 0.5, 0.9], 0.1) == pytest.approx([0.45, 0.55, 0.9])
    assert spread_out([0.96, 0.98, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert spread_out([-0.5, 0.0], 0.1) == pytest.approx([0.0, 0.1])
