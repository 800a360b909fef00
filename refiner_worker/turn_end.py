"""The token that ends a turn: in some families (Gemma, Phi-3) it is another than the tokenizer's EOS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl.utils.model import get_generation_config

REPLY = "reply"


@dataclass(slots=True, frozen=True)
class TurnEnd:
    """How a policy ends its turns.

    Example: ``TurnEnd(stops=frozenset({1, 107}), written=107)`` for Gemma's ``<eos>`` and ``<end_of_turn>``.
    """

    stops: frozenset[int]
    """EOS tokens, at each of which an engine ends a response."""
    written: int
    """The one that the chat template puts after a reply."""

    def of(self, turn_ids: list[int]) -> int:
        """Return the token that ends a refinement of a turn: the turn's own; of one that was cut, ``written``."""
        return turn_ids[-1] if self.is_whole(turn_ids) else self.written

    def is_whole(self, turn_ids: list[int]) -> bool:
        """Tell whether a turn came to its end, uncut."""
        return bool(turn_ids) and turn_ids[-1] in self.stops


def read_turn_end(model_folder: str, tokenizer: Any, chat_settings: Mapping[str, Any] | None = None) -> TurnEnd:
    """Return the tokenizer's EOS and those of ``generation_config.json``: what vLLM stops at (``SamplingParams``)."""
    generation = get_generation_config(model_folder)
    also = getattr(generation, "eos_token_id", None)
    stops = {tokenizer.eos_token_id, *([] if also is None else [also] if isinstance(also, int) else also)}
    behind = behind_a_reply(tokenizer, chat_settings)
    written = next((one for one in behind if one in stops), tokenizer.eos_token_id)
    return TurnEnd(stops=frozenset(stops), written=written)


def behind_a_reply(tokenizer: Any, chat_settings: Mapping[str, Any] | None = None) -> list[int]:
    """Return the tokens that the chat template puts after a reply; the first is what ends a turn."""
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": REPLY}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, **(chat_settings or {}))
    ids: list[int] = tokenizer.encode(text.rpartition(REPLY)[2], add_special_tokens=False)
    return ids
