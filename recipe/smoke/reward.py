"""The task of the tiny model: small letters are rewarded."""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """Return the share of small letters, as verl asks for a reward."""
    return sum(letter.islower() for letter in solution_str) / max(len(solution_str), 1)
