"""The reference model, as a constraint may ask it beside refinements (``method/asks.py``)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from recipe.online_refiner.method.pairs import Rollout
from recipe.online_refiner.refine.language import Language
from refiner_worker.client import RefinerClient
from refiner_worker.config import RefinerConfig
from refiner_worker.engines import Top


@dataclass(slots=True, frozen=True, kw_only=True)
class ReferenceModel:
    """What a constraint may ask the reference model about the responses of a group."""

    config: RefinerConfig
    client: RefinerClient
    language: Language
    max_model_len: int
    """The context length of the reference model, in tokens."""

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self.language.tokenizer

    @property
    def scores_by_actor(self) -> bool:
        """Whether the actor, without its adapter, computes the log-probs: vLLM gives none beside adapters."""
        return self.config.placement == "shared"

    def is_maximal(self, reward: float | None) -> bool:
        """Return whether a reward cannot improve."""
        return self.config.is_maximal(reward)

    def answer_in(self, rollout: Rollout, turn_ids: list[int]) -> str:
        """Return a last turn of a rollout's session as text without its thought; empty if the thought does not end."""
        return self.language.answer_in(rollout, turn_ids)

    def chat_before(self, rollout: Rollout) -> list[dict[str, Any]]:
        """Return the messages that a rollout's last turn answers."""
        return self.language.chat_before(rollout)

    async def on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function that encodes or decodes texts; other requests go on meanwhile."""
        return await self.language.on_thread(function, *arguments)

    async def log_probs(self, prompt_ids: list[int], response_ids: list[int]) -> list[float] | None:
        """Return log pi_0 of a response's tokens, (len(response_ids),); None if no replica answered in time."""
        return await self.client.in_time(self.client.log_probs, prompt_ids, response_ids)

    async def top_log_probs(self, prompt_ids: list[int], response_ids: list[int], k: int, num_ids: int) -> Top | None:
        """Return the k likeliest tokens at each place of a response; None if no replica answered in time."""
        return await self.client.in_time(self.client.top_log_probs, prompt_ids, response_ids, k, num_ids)
