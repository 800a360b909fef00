"""Shares of what becomes of wrong answers, and their intervals."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from recipe.comparison import OUTCOMES, Bench, interval, t_interval
from recipe.online_refiner.pairs import Refinement, Rollout, Verdict
from refiner_worker.turn_end import read_turn_end


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


def test_few_problems_say_little() -> None:
    values = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    assert interval(values, np.arange(6))[1] > 0
    mean, low, high = t_interval(values, np.arange(6))
    width = 2.5706 * np.std(values, ddof=1) / 6**0.5  # Student's t with 5 degrees of freedom
    assert mean == 0.5 and (low, high) == (pytest.approx(0.5 - width, abs=0.005), pytest.approx(0.5 + width, abs=0.005))
    assert t_interval(np.repeat(values, 2), np.repeat(np.arange(6), 2)) == (0.5, low, high), "answers that are alike"
    uneven = t_interval(np.array([1.0, 1.0, 0.0]), np.array([0, 0, 1]))  # sums less their share: 2 - 4/3 and 0 - 2/3
    assert uneven[1] == pytest.approx(2 / 3 - 12.706 * 2**0.5 * (8 / 9) ** 0.5 / 3, rel=0.02)
    assert t_interval(np.array([1.0]), np.zeros(1)) == (1.0, -np.inf, np.inf)


def test_given_answers_are_rewarded_and_none_is_drawn(tiny_llama: Path) -> None:
    @contextlib.asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        yield

    def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> dict[str, Any]:
        return {"score": float(solution_str == ground_truth), "feedback": f"not {solution_str}"}

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    bench = Bench(
        engine=SimpleNamespace(slot=slot),  # type: ignore[arg-type]  # it cannot generate
        tokenizer=tokenizer,
        turn_end=read_turn_end(str(tiny_llama), tokenizer),
        reward=reward,
        max_response_tokens=8,
        max_model_len=64,
    )
    row = {"data_source": "", "prompt": [{"role": "user", "content": "Say b."}], "reward_model": {"ground_truth": "b"}}
    group = asyncio.run(bench.answer({**row, "responses": ["a", "b", "b"]}, 7, 2, {}))
    assert [(one.key, one.reward, one.feedback) for one in group] == [("7_0_0", 0.0, "not a"), ("7_1_0", 1.0, "not b")]
    assert [one.response_ids[-1] for one in group] == [bench.turn_end.written] * 2, "a given answer is whole"
