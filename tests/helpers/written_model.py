"""Models that write a given text, and a refine stage around one."""

import asyncio
import contextlib
import copy
import os.path
from collections.abc import AsyncIterator, Sequence
from typing import Any

from recipe.online_refiner.method.pairs import Refinement, Rollout
from recipe.online_refiner.refine.group import Refiner
from refiner_worker.client import RefinerClient
from refiner_worker.config import TEMPLATES, read_refiner
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.thoughts import read_thoughts
from refiner_worker.text.turn_end import TurnEnd


def with_template(tokenizer: Any, template: str) -> Any:
    """Return a tokenizer with another chat template."""
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    return changed


class Engine:
    """A model that writes a text, whatever it reads, and goes on with it behind what of it is in its prompt."""

    def __init__(self, tokenizer: Any, text: str, **keys: Any) -> None:
        """Write nothing yet."""
        self.tokenizer, self.ids = tokenizer, [*tokenizer.encode(text), tokenizer.eos_token_id]
        values = {"model_path": "m", "response_length": 96, "thought_length": 64, **keys}
        self.config = read_refiner(values)
        self.first: list[int] | None = None
        self.asked: list[tuple[str | None, int]] = []
        self.read: list[int] = []
        self.scored: list[list[int]] = []

    in_time = RefinerClient.in_time

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for nothing."""
        yield

    async def log_probs(self, prompt_ids: list[int], response_ids: list[int]) -> list[float]:
        """Score."""
        self.scored.append(prompt_ids)
        return [-1.0] * len(response_ids)

    async def generate(
        self, prompt_ids: list[int], stop: str | None, limit: int, stop_ids: Sequence[int] = (), num: int = 1
    ) -> list[list[int]]:
        """Write up to what ends it."""
        self.first = self.first or prompt_ids
        self.asked.append((stop, limit))
        self.read.append(len(prompt_ids))
        text, written = self.tokenizer.decode(self.ids), self.tokenizer.decode(prompt_ids[len(self.first) :])
        left = text[len(os.path.commonprefix([text, written])) :]
        ids: list[int] = []
        for token in self.tokenizer.encode(left)[:limit]:
            ids.append(token)
            if token in (*stop_ids, self.tokenizer.eos_token_id) or (stop and stop in self.tokenizer.decode(ids)):
                break
        return [ids] * num


class WrittenServer(Engine):
    """A server by URL that sends a thought apart, or all in one text."""

    def __init__(self, tokenizer: Any, thought: str, text: str, *, is_whole: bool = True, **keys: Any) -> None:
        """Write nothing yet."""
        super().__init__(tokenizer, text, placement="external", url="http://host/v1", **keys)
        self.said = thought, text, is_whole

    async def write(self, content: str, stop: str | None, *_: Any) -> list[tuple[str, str, bool]]:
        """Write up to the stop text."""
        thought, text, is_whole = self.said
        self.content = content
        return [(thought, text[: text.find(stop) + len(stop)] if stop and stop in text else text, is_whole)]


def refined(tokenizer: Any, response: str, engine: Engine, **more: Any) -> Refinement:
    """Refine one response, which has the reward 0.25 and unless cut an end; a' gets 0.5."""
    (found,) = group_refined(tokenizer, [response], engine, **more)
    return found


def group_refined(
    tokenizer: Any,
    responses: list[str],
    engine: Engine,
    *,
    template: str = "general",
    settings: dict[str, Any] | None = None,
    is_whole: bool = True,
    **more: Any,
) -> list[Refinement]:
    """Refine a group of such responses."""
    seen: list[list[int]] = []

    async def score(rollout: Rollout, ids: list[int]) -> float:
        seen.append(ids)
        return 0.5

    settings = settings or {}
    thoughts = read_thoughts(tokenizer, settings, engine.config.thoughts)
    end = [tokenizer.eos_token_id] if is_whole else []
    refiner = Refiner(
        config=engine.config,
        client=engine,  # type: ignore[arg-type]
        prompt=RefinerPrompt(TEMPLATES / f"{template}.jinja", tokenizer, settings, {}, thoughts),
        turn_end=TurnEnd(stops=frozenset({tokenizer.eos_token_id}), written=tokenizer.eos_token_id),
        score=score,
        max_model_len=2048,
        max_response_tokens=128,
        **more,
    )
    common: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}], "prompt_ids": [1], "reward_columns": {}}
    group = [
        Rollout(key=f"u_{n}_0", response_ids=[*tokenizer.encode(one), *end], reward=0.25, **common)
        for n, one in enumerate(responses)
    ]
    found = asyncio.run(refiner.refine_group(group))
    one_each = engine.config.samples == 1 and not refiner.scores_leaks
    assert not one_each or {*map(tuple, seen)} <= {tuple(one.token_ids) for one in found}
    return found
