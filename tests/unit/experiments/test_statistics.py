"""Statistics of a few seeds, against values computed by hand."""

import numpy as np
import pytest

from experiments.lab.statistics import holm, interquartile_mean, permutation_p


@pytest.mark.parametrize(
    ("values", "expected"),
    [([8, 1, 2, 7, 3, 6, 4, 5], 4.5), ([0, 1, 9], (1 + 0.25 * 9) / 1.5), ([3], 3), ([1, 2], 1.5)],
)
def test_interquartile_mean(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values, float)) == pytest.approx(expected)


def test_p_of_a_difference_counts_the_ways_to_deal_the_values() -> None:
    assert permutation_p([3, 4, 5], [0, 1, 2]) == pytest.approx(2 / 20)
    assert permutation_p([1, 1, 1], [1, 1, 1]) == 1


def test_holm() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
