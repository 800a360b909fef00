"""Answers of the user's own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer

from recipe.offline.bench import Bench
from refiner_worker.text.turn_end import read_turn_end


def test_given_answers_are_rewarded_and_none_is_drawn(tiny_llama: Path) -> None:
    @contextlib.asynccontextmanager
    async def slot() -> AsyncIterator[None]:
        yield

    def reward(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> dict[str, Any]:
        return {"score": float(solution_str == ground_truth), "feedback": f"not {solution_str}\ud83d"}

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
    assert [(one.key, one.reward, one.feedback) for one in group] == [
        ("7_0_0", 0.0, "not a?"),
        ("7_1_0", 1.0, "not b?"),
    ], "half a character is none that a tokenizer takes"
    assert [one.response_ids[-1] for one in group] == [bench.turn_end.written] * 2, "a given answer is whole"
