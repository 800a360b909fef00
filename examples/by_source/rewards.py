"""A reward for each data source."""

from typing import Any

from reward import math


async def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """Return 1 for a right answer, else 0: a sum by its number, a capital alone by its name."""
    if data_source == "sums":
        said = await math.compute_score(data_source, solution_str, ground_truth, extra_info)
        return float(said["score"])
    return float(solution_str.strip().rstrip(".") == ground_truth)
