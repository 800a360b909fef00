"""The same wrong answers refined in several ways: shares of what becomes of them, and differences between ways.

The refiner is that of training (``recipe.online_refiner.refine``), on a vLLM engine in this process.
"""

import asyncio
import contextlib
import copy
import inspect
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recipe import bootstrap
from recipe.online_refiner.pairs import Refinement, Rollout, Verdict
from recipe.online_refiner.refine import Refiner
from refiner_worker.config import read_refiner
from refiner_worker.parsing import decode
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.thoughts import read_thoughts
from refiner_worker.turn_end import TurnEnd

Reward = Callable[..., Any]
"""verl's reward function, async or not; its answer is a number, or ``score`` beside others."""
COLUMNS = ("data_source", "reward_model", "extra_info")
GIVEN = "responses"
"""The column with answers of the user's own, a list of texts."""
MAX_WAITING = 64
"""Requests under way at a time."""
OUTCOMES: dict[str, Callable[[Rollout, Refinement], bool]] = {
    "improved": lambda old, new: new.verdict.is_scored and (new.reward or 0.0) > old.reward,
    "worsened": lambda old, new: new.verdict.is_scored and (new.reward or 0.0) < old.reward,
    "repeated": lambda old, new: new.is_repeated,
    "leaked": lambda old, new: new.verdict is Verdict.LEAK,
    "truncated": lambda old, new: new.verdict in (Verdict.TRUNCATED, Verdict.THOUGHT, Verdict.TOO_LONG),
}
"""What became of a wrong answer; with others, such as another answer of the same reward, they are all."""


class Engine:
    """A model that answers token ids by token ids."""

    def __init__(self, model: str, max_model_len: int, seed: int, dtype: str | None = None) -> None:
        """Load the model; on a CPU in float32, if no other type is named."""
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        dtype = dtype or ("float32" if current_platform.is_cpu() else "auto")
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(model=model, max_model_len=max_model_len, dtype=dtype, enforce_eager=True, seed=seed)
        )
        self._slots = asyncio.Semaphore(MAX_WAITING)
        self.on_done: Callable[[], object] = lambda: None
        """Called after each request."""

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a place."""
        async with self._slots:
            try:
                yield
            finally:
                self.on_done()

    async def generate(
        self,
        prompt_ids: list[int],
        stop: str | None,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
        num: int = 1,
        *,
        temperature: float,
    ) -> list[list[int]]:
        """Return so many texts that the model writes, by one request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            n=num,
            max_tokens=max_new_tokens,
            temperature=temperature,
            stop=stop,
            stop_token_ids=list(stop_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        written: list[list[int]] = []
        async for output in self._llm.generate({"prompt_token_ids": prompt_ids}, sampling, uuid.uuid4().hex):
            written = [list(one.token_ids) for one in output.outputs]
        return written

    def close(self) -> None:
        """End the engine's process."""
        self._llm.shutdown()


@dataclass(slots=True, kw_only=True)
class EngineClient:
    """An engine, asked as ``RefinerClient`` is."""

    engine: Engine
    temperature: float

    def slot(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return what to make a request in."""
        return self.engine.slot()

    async def generate(self, *request: Any) -> list[list[int]]:
        """Return what the model writes."""
        return await self.engine.generate(*request, temperature=self.temperature)


@dataclass(slots=True, kw_only=True)
class Bench:
    """A model on a task."""

    engine: Engine
    tokenizer: Any
    turn_end: TurnEnd
    reward: Reward
    max_response_tokens: int
    max_model_len: int
    failed: list[str] = field(default_factory=list)
    """Answers whose reward function raised: what."""

    async def answer(self, row: Mapping[str, Any], group: int, num_samples: int) -> list[Rollout]:
        """Draw answers to a row of a data set in verl's schema, or take those that it has, and reward them."""
        messages = list(row["prompt"])
        chat = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = self.tokenizer.encode(chat, add_special_tokens=False)
        given: list[str] = list(row.get(GIVEN) or [])[:num_samples]

        async def one(sample: int) -> Rollout | None:
            async with self.engine.slot():
                if given:
                    ids = [*self.tokenizer.encode(given[sample], add_special_tokens=False), self.turn_end.of([])]
                else:
                    (ids,) = await self.engine.generate(prompt_ids, None, self.max_response_tokens, temperature=1.0)
            request = {"extra_info": {}, **{name: row[name] for name in COLUMNS if row.get(name) is not None}}
            rollout = Rollout(
                key=f"{group}_{sample}_0",
                messages=messages,
                prompt_ids=prompt_ids,
                response_ids=ids,
                reward=0.0,
                request=request,
            )
            try:
                said = await self._reward(rollout, ids)
            except Exception as error:  # a user's; training leaves such a rollout out as well
                self.failed.append(f"{type(error).__name__}: {error}")
                return None
            words = said.get("feedback")
            rollout.reward, rollout.feedback = float(said["score"]), "" if words is None else str(words)
            return rollout

        return [one for one in await asyncio.gather(*map(one, range(len(given) or num_samples))) if one is not None]

    def refiner(self, settings: Mapping[str, Any]) -> Refiner:
        """Return what refines with these keys of the block ``refiner``.

        It works in a thread with a tokenizer of its own: two threads cannot use one (``Already borrowed``).
        """
        config = read_refiner({"model_path": "", **settings})
        limits = config.limits(self.max_response_tokens)

        async def score(rollout: Rollout, ids: list[int]) -> float:
            return float((await self._reward(rollout, ids))["score"])

        return Refiner(
            config=config,
            client=EngineClient(engine=self.engine, temperature=config.temperature),  # type: ignore[arg-type]
            prompt=RefinerPrompt(
                config.template_path(),
                copy.deepcopy(self.tokenizer),
                {},
                limits,
                read_thoughts(self.tokenizer, None, config.thoughts),
            ),
            turn_end=self.turn_end,
            score=score,
            max_model_len=self.max_model_len,
            max_response_tokens=self.max_response_tokens,
        )

    async def _reward(self, rollout: Rollout, ids: list[int]) -> dict[str, Any]:
        columns = rollout.request
        arguments = {
            "data_source": columns["data_source"],
            "solution_str": decode(self.tokenizer, ids),
            "ground_truth": columns["reward_model"]["ground_truth"],
            "extra_info": columns["extra_info"],
        }
        is_async = inspect.iscoroutinefunction(self.reward)
        said = await (self.reward(**arguments) if is_async else asyncio.to_thread(self.reward, **arguments))
        return said if isinstance(said, dict) else {"score": float(said)}


def interval(values: np.ndarray, problems: np.ndarray) -> tuple[float, float, float]:
    """Return a mean with its 95 % interval: bootstrap over problems, whose answers are alike.

    Args:
        values: One for each answer; of a pair of ways, the difference.
        problems: Of the answers.
    """
    sums = [[values[problems == one].sum(), (problems == one).sum()] for one in np.unique(problems)]
    return bootstrap.interval(lambda drawn: drawn[..., 0].sum(-1) / drawn[..., 1].sum(-1), sums)
