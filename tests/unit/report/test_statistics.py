"""Statistics of a few seeds, against values computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe.report.statistics import holm, improvement, interquartile_mean, interval, permutation_p, profile

VALUES = st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([8, 1, 2, 7, 3, 6, 4, 5], 4.5),
        ([6, 5, 4, 3, 2, 1], 3.5),
        ([0, 1, 9], (1 + 0.25 * 9) / 1.5),
        ([3], 3),
        ([1, 2], 1.5),
    ],
)
def test_interquartile_mean(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values, float)) == pytest.approx(expected)


@given(values=VALUES)
def test_outliers_do_not_move_the_middle(values: list[float]) -> None:
    found = interquartile_mean(np.array([values, [value + 1 for value in values]]))
    assert min(values) - 1e-6 <= found[0] <= max(values) + 1e-6
    assert found[1] == pytest.approx(found[0] + 1, abs=1e-6)
    far = np.array([0.0, 1, 2, 3, 4, 5, 6, 1e9])
    assert interquartile_mean(far) == interquartile_mean(np.arange(8.0))


def test_probability_of_improvement_counts_pairs() -> None:
    assert improvement(np.array([1.0, 3.0]), np.array([2.0, 1.0])) == pytest.approx((0.5 + 1 + 0 + 1) / 4)


def test_an_interval_holds_the_value_and_narrows_with_more_runs() -> None:
    few, many = [0.1, 0.5, 0.9], [0.1, 0.5, 0.9] * 20
    mean = lambda values: values.mean(-1)  # noqa: E731
    value, low, high = interval(mean, few)
    assert value == pytest.approx(0.5) and low < value < high
    _, nearer_low, nearer_high = interval(mean, many)
    assert nearer_high - nearer_low < 0.4 * (high - low)
    assert interval(mean, few) == (value, low, high), "the same draws again"


def test_p_of_a_difference_counts_the_ways_to_deal_the_values() -> None:
    assert permutation_p([3, 4, 5], [0, 1, 2]) == pytest.approx(2 / 20)
    assert permutation_p([1, 1, 1], [1, 1, 1]) == 1
    rng = np.random.default_rng(0)
    many = rng.normal(size=12), rng.normal(1.0, size=12)
    assert permutation_p(*many) == pytest.approx(permutation_p(*many, seed=1), abs=0.01), "drawn, not counted"


def test_holm() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_profile() -> None:
    assert profile([0.1, 0.5, 0.7], [0.0, 0.5, 0.9]) == pytest.approx([1, 1 / 3, 0])
