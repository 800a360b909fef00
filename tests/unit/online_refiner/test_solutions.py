"""The data set's answer that a refiner may be shown: a number or a truth value is one, whichever it is."""

from typing import Any

import pytest

from recipe.online_refiner.pairs import Rollout


@pytest.mark.parametrize(
    ("extra", "ground_truth", "expected"),
    [
        ({"solution": "1 + 1 = 2", "answer": 2}, "2", "1 + 1 = 2"),
        ({"answer": 0}, "7", "0"),
        ({"answer": False}, "7", "False"),
        ({"solution": "", "answer": None}, 0, "0"),
        ({"solution": " "}, 0.0, "0.0"),
        (None, '{"inputs": []}', ""),
        (None, None, ""),
    ],
)
def test_which_solution_a_refiner_is_shown(extra: dict[str, Any] | None, ground_truth: Any, expected: str) -> None:
    request = {"extra_info": extra, "reward_model": {"ground_truth": ground_truth}}
    rollout = Rollout(key="u_0_0", messages=[], prompt_ids=[], response_ids=[], reward=0.0, request=request)
    assert rollout.solution == expected
