import itertools
import math

import pytest

from recipe.evaluation.pass_at_k import mean_pass_at_k, pass_at_k


@pytest.mark.parametrize(
    ("num_samples", "num_passed", "k", "expected"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        (5, 2, 2, 0.7),  # 1 - C(3, 2) / C(5, 2) = 1 - 3 / 10
        (10, 1, 10, 1.0),
        (4, 2, 3, 1.0),  # fewer than k failed
        (200, 1, 100, 0.5),
    ],
)
def test_closed_form(num_samples: int, num_passed: int, k: int, expected: float) -> None:
    assert pass_at_k(num_samples, num_passed, k) == pytest.approx(expected, abs=1e-12)


def test_it_is_the_share_of_subsets_with_a_passed_sample() -> None:
    flags = [True, True, False, False, False, False]
    for k in range(1, 7):
        subsets = list(itertools.combinations(flags, k))
        assert pass_at_k(6, 2, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_many_samples_stay_exact() -> None:
    assert pass_at_k(10_000, 1, 10) == pytest.approx(1e-3, rel=1e-12)
    assert math.isfinite(pass_at_k(10_000, 5_000, 1_000))


def test_mean_counts_every_problem_once() -> None:
    assert mean_pass_at_k([(1, 1), (4, 1)], 1) == pytest.approx((1.0 + 0.25) / 2)


@pytest.mark.parametrize(("num_samples", "num_passed", "k"), [(1, 0, 2), (1, 0, 0), (1, 2, 1), (3, -1, 1)])
def test_impossible_counts(num_samples: int, num_passed: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(num_samples, num_passed, k)
    with pytest.raises(ValueError, match="no problem"):
        mean_pass_at_k([], 1)
