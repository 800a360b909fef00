"""Shares of what becomes of wrong answers, and their intervals."""

import numpy as np
import pytest

from recipe.comparison import OUTCOMES, interval
from recipe.online_refiner.pairs import Refinement, Rollout, Verdict


def test_what_becomes_of_a_wrong_answer() -> None:
    old = Rollout(key="0_0_0", messages=[], prompt_ids=[1], response_ids=[3, 2], reward=-0.3, request={})
    refinements = {
        "improved": Refinement(verdict=Verdict.ACCEPTED, token_ids=[4, 2], reward=0.0),
        "worsened": Refinement(verdict=Verdict.NOT_BETTER, token_ids=[4, 2], reward=-1.0),
        "repeated": Refinement(verdict=Verdict.NOT_BETTER, token_ids=[3, 4, 2], reward=-0.3, is_repeated=True),
        "truncated": Refinement(verdict=Verdict.TRUNCATED),
        "": Refinement(verdict=Verdict.NOT_BETTER, token_ids=[4, 2], reward=-0.3),
        "none": Refinement(verdict=Verdict.TIMEOUT),
    }
    for name, new in refinements.items():
        assert [outcome for outcome, holds in OUTCOMES.items() if holds(old, new)] == [name] * (name in OUTCOMES)


def test_answers_to_one_problem_count_as_one_draw() -> None:
    values = np.array([1.0, 0.0] * 50)
    mean, low, high = interval(values, np.arange(100))
    assert mean == 0.5 and (low, high) == (pytest.approx(0.4, abs=0.02), pytest.approx(0.6, abs=0.02))  # 1.96 / 20
    clustered = interval(np.repeat([1.0, 0.0], 50), np.repeat([0, 1, 2, 3], 25))
    assert clustered[0] == 0.5 and clustered[1:] == (0.0, 1.0), "four problems, two of them right each time"
    assert interval(values - values, np.arange(100)) == (0.0, 0.0, 0.0)
