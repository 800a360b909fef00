"""Percentile bootstrap intervals: the same draws each time, whatever fits in memory."""

import numpy as np
import pytest

from experiments import bootstrap
from experiments.bootstrap import interval


def test_an_interval_holds_the_value_and_narrows_with_more_runs() -> None:
    few, many = [0.1, 0.5, 0.9], [0.1, 0.5, 0.9] * 20
    mean = lambda values: values.mean(-1)  # noqa: E731
    value, low, high = interval(mean, few)
    assert value == pytest.approx(0.5) and low < value < high
    _, nearer_low, nearer_high = interval(mean, many)
    assert nearer_high - nearer_low < 0.4 * (high - low)
    assert interval(mean, few) == (value, low, high), "the same draws again"


def test_an_interval_of_many_values_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).random((40, 2))
    whole = bootstrap.interval(lambda drawn: drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1), rows)
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(bootstrap, "NUM_DRAWN", 4_000)

    def ratio(drawn: np.ndarray) -> np.ndarray:
        shapes.append(drawn.shape)
        return drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1)

    assert bootstrap.interval(ratio, rows) == whole
    assert shapes[0] == (100, 40, 2) and len(shapes) == 101
