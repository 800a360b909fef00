"""Protocols for what the method needs from outside: the other blocks of the config, and the reference model pi_0."""

from collections.abc import Callable
from typing import Any, Protocol

from recipe.online_refiner.method.pairs import Rollout
from refiner_worker.config import RefinerConfig
from refiner_worker.engines import Top


class Blocks(Protocol):
    """The other blocks of the config, by which a constraint checks whether it supports them."""

    refiner: RefinerConfig
    """The block ``refiner``: who refines which responses, and how."""

    @property
    def streams(self) -> bool:
        """Whether responses are refined during the rollout."""
        ...


class Reference(Protocol):
    """What a constraint may ask of the reference model pi_0 about the responses of a group, apart from refinements."""

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        ...

    @property
    def max_model_len(self) -> int:
        """Context length of pi_0, in tokens."""
        ...

    @property
    def scores_by_actor(self) -> bool:
        """Whether the actor, without its adapter, computes pi_0's log-probs (``refiner.placement=shared``).

        vLLM gives no log-probs beside adapters.
        """
        ...

    def is_maximal(self, reward: float | None) -> bool:
        """Return whether a reward cannot improve (``refiner.skip_reward_at_least``)."""
        ...

    def answer_in(self, rollout: Rollout, turn_ids: list[int]) -> str:
        """Return a last turn of a rollout's session as text without its thought; empty if the thought does not end."""
        ...

    def chat_before(self, rollout: Rollout) -> list[dict[str, Any]]:
        """Return the messages that a rollout's last turn answers."""
        ...

    async def on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that encodes or decodes texts; other requests go on meanwhile."""
        ...

    async def log_probs(self, prompt_ids: list[int], response_ids: list[int]) -> list[float] | None:
        """Return log pi_0 of a response's tokens, (len response_ids,); None if no replica answered in time."""
        ...

    async def top_log_probs(self, prompt_ids: list[int], response_ids: list[int], k: int, num_ids: int) -> Top | None:
        """Return the k likeliest tokens at each place of a response; None if no replica answered in time.

        Ids from ``num_ids`` on, which no tokenizer has, are left out.
        """
        ...
