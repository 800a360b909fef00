"""Statistics of a few seeds, against values computed by hand."""

import numpy as np
import pytest

from recipe.lab import statistics
from recipe.lab.statistics import holm, interquartile_mean, interval, permutation_p


@pytest.mark.parametrize(
    ("values", "expected"),
    [([8, 1, 2, 7, 3, 6, 4, 5], 4.5), ([0, 1, 9], (1 + 0.25 * 9) / 1.5), ([3], 3), ([1, 2], 1.5)],
)
def test_interquartile_mean(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values, float)) == pytest.approx(expected)


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


def test_holm() -> None:
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_an_interval_of_many_values_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).random((40, 2))
    whole = statistics.interval(lambda drawn: drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1), rows)
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(statistics, "NUM_DRAWN", 4_000)

    def ratio(drawn: np.ndarray) -> np.ndarray:
        shapes.append(drawn.shape)
        return drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1)

    assert statistics.interval(ratio, rows) == whole
    assert shapes[0] == (100, 40, 2) and len(shapes) == 101
