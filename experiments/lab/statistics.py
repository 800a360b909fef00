"""Statistics of a few seeds: interquartile means, corrected p-values.

After "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (Agarwal et al., 2021), for one task.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of (..., n) values along the last axis; a value may count in part."""
    number = values.shape[-1]
    ranks = np.arange(number)
    inside = np.clip(np.minimum(ranks + 1, 0.75 * number) - np.maximum(ranks, 0.25 * number), 0, 1)
    return (np.sort(values, axis=-1) * inside).sum(-1) / inside.sum()


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p of a difference between two means, over all permutations of the values.

    Two dozen values have millions of permutations.
    """
    values, number = np.concatenate([np.asarray(first, float), np.asarray(second, float)]), len(first)
    sums = np.array([sum(way) for way in itertools.combinations(values, number)])
    differences = abs(sums / number - (values.sum() - sums) / (len(values) - number))
    return float((differences >= abs(np.mean(first) - np.mean(second)) - 1e-12).mean())


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values that hold for all of them together (Holm's step-down correction), in their order."""
    corrected, highest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p))
        corrected[name] = highest
    return {name: corrected[name] for name in p_values}
