"""Test code that reads its arguments again."""

import pytest

from recipe.data_preparation.rereading import argument_read_again


@pytest.mark.parametrize(
    ("test_code", "name"),
    [
        ("a = [3, 2, 4]\ni, j = f(a, 6)\nassert i != j and a[i] + a[j] == 6", "a"),
        ("for k in range(3):\n    a = [k, 2]; r = f(a)\n    assert sum(a[i] for i in r) == k", "a"),
        ("def check(candidate):\n    n = [1]\n    r = candidate(n, 6)\n    assert n[r[0]] + 1 == 2\ncheck(f)", "n"),
        ("a = [1, 2]\nassert a[f(a, 2)] == 2", "a"),
        ("a = [1, 2]\ni = Solution().f(a, 3)\nassert not a[i]", "a"),
        ("a = [1, 2]\ni = f(a[:], 3)\nassert not a[i]", ""),
        ("a = [1, 2]\ni = f(list(a), 3)\nassert not a[i]", ""),
        ("a = [1, 2]\nb = a[0] + 1\nassert f(a) == b", ""),
        ("a = [1, 2]\nk = f(a)\nassert a[:k] == [1]", ""),
        ("a = [1]\nf(a)\na = [2]\nassert a[0] + 1 == 3", ""),
        ("for n in range(9):\n    assert f(n) == n * n", ""),
        ("a = [1]\ndef ref(a):\n    return a[0] + 1\nassert f(a) == 2", ""),
        ("a = [1]\ng = len(a)\nassert f(g) == a[0] + 1", ""),
        ("a = [1]\nassert f(a) == 2\ndef other(a):\n    return a[0] + 1", ""),
    ],
)
def test_items_of_arguments_read_behind_the_call(test_code: str, name: str) -> None:
    assert argument_read_again(test_code, "f") == name
    assert argument_read_again(test_code, None) == name
