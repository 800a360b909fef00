"""The unbiased estimate of pass@k: the probability that at least one of k samples passes."""

import math
from collections.abc import Iterable


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return 1 - C(n - c, k) / C(n, k) for c passed of n samples, which is c / n for k = 1.

    It is the share of the k-subsets of the n samples that hold a passed one, in exact integers until the division.

    Raises:
        ValueError: If k is not in 1..n, or c not in 0..n.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} of {num_samples} samples: k must be from 1 to the number of samples a problem")
    if not 0 <= num_passed <= num_samples:
        raise ValueError(f"{num_passed} of {num_samples} samples passed: give a number from 0 to {num_samples}")
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """Return the mean over problems.

    Args:
        counts: (num_samples, num_passed) of every problem, at least one.
        k: As above.

    Raises:
        ValueError: As above, or if there is no problem.
    """
    values = [pass_at_k(num_samples, num_passed, k) for num_samples, num_passed in counts]
    if not values:
        raise ValueError("pass@k of no problem: give at least one")
    return math.fsum(values) / len(values)
