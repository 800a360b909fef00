"""The numbers of a report, worked out by hand."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.report import series
from recipe.report.arms import Arm
from recipe.report.runs import read_run

PENALTY = series.QUANTITIES[-1]


def arm(*paths: Path) -> Arm:
    return Arm(name="x", runs=[read_run(path) for path in paths])


def test_a_curve_is_mean_and_sample_deviation_over_the_seeds_that_have_the_step(write_run: Callable) -> None:
    both = arm(write_run("a", [0.0, 1.0, 2.0, None]), write_run("b", [1.0, 1.0, float("nan")]))
    points = series.curve(both, series.REWARD)
    assert {step: point.mean for step, point in points.items()} == {1: 0.5, 2: 1.0, 3: 2.0}
    assert [point.spread for point in points.values()] == [pytest.approx(0.5**0.5), 0.0, None]


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
        (PENALTY, {"constraint/penalty": 0.0, "constraint/eta": 0.1}, False),
        (PENALTY, {"constraint/penalty": -0.2, "constraint/eta": 0.1}, True),
    ],
)
def test_the_zeros_of_a_mode_that_does_not_measure_are_no_values(
    quantity: series.Quantity, metrics: dict, is_measured: bool, write_run: Callable
) -> None:
    assert bool(series.curve(arm(write_run("a", [0.0], metrics=metrics)), quantity)) is is_measured


def test_a_final_value_is_the_mean_over_the_last_tenth_of_a_run_and_three_steps_at_least(write_run: Callable) -> None:
    short, long = write_run("a", [9.0, 9.0, 1.0, 2.0, 3.0]), write_run("b", [9.0] * 36 + [3.0, 3.0, 5.0, 5.0])
    final = series.over_runs(arm(short, long), series.REWARD, series.final)
    assert final == series.Stat(mean=3.0, spread=pytest.approx(2**0.5))
    assert series.over_runs(arm(short), series.REWARD, series.over_all_steps).mean == pytest.approx(4.8)


def test_validation_scores_are_found_by_their_name(write_run: Callable) -> None:
    others = {"val-core/apps/acc/best@2/mean": 0.1, "val-aux/num_turns/mean": 2}
    path = write_run("a", [0.0], metrics={"val-core/apps/acc/mean@1": 0.5, **others})
    found = series.validations([read_run(path)])
    assert [quantity.metric for quantity in found] == ["val-core/apps/acc/mean@1"]
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "val-core/apps/acc/mean@1": 0.75}\n{"step": 3}\n')
    last = series.over_runs(arm(path, write_run("b", [0.0])), found[0], series.last)
    assert last == series.Stat(mean=0.75, spread=None), "of the last step that was validated"
