"""Percentile bootstrap intervals."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NUM_SAMPLES = 10_000
NUM_DRAWN = 10_000_000  # values in memory
LEVEL = 0.95


def interval(
    statistic: Callable[..., np.ndarray], *samples: Sequence[Any], level: float = LEVEL
) -> tuple[float, float, float]:
    """Return a statistic of some samples, and its percentile bootstrap interval; each sample is drawn from by itself.

    Args:
        statistic: From (..., n) arrays, one for each sample, to (...).
        samples: Values of the runs of an arm each; also rows of numbers, which are drawn together.
        level: The share of samples that the interval holds.
    """
    rng = np.random.default_rng(0)
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    most = max(1, NUM_DRAWN // max(map(len, arrays)))  # samples at a time
    drawn = [
        statistic(*(array[rng.integers(0, len(array), (number, len(array)))] for array in arrays))
        for number in (min(most, NUM_SAMPLES - done) for done in range(0, NUM_SAMPLES, most))
    ]
    low, high = np.quantile(np.concatenate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return float(statistic(*arrays)), float(low), float(high)
