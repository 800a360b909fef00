"""The token that ends a turn of a chat.

In some families (Gemma, Phi-3) another token than the tokenizer's EOS ends a turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, GenerationConfig

REPLY = "reply"


@dataclass(slots=True, frozen=True)
class TurnEnd:
    """How a policy ends its turns.

    Example: ``TurnEnd(stops=frozenset({1, 107}), written=107)`` for Gemma's ``<eos>`` and ``<end_of_turn>``.
    """

    stops: frozenset[int]
    """The EOS tokens: an engine ends a response at each of them."""
    written: int
    """The EOS token that the chat template puts after a reply."""

    def of(self, turn_ids: list[int]) -> int:
        """Return the token that ends a refinement of a turn: the turn's own or, if the turn was cut, ``written``."""
        return turn_ids[-1] if self.is_whole(turn_ids) else self.written

    def is_whole(self, turn_ids: list[int]) -> bool:
        """Return whether a turn came to its end and was not cut."""
        return bool(turn_ids) and turn_ids[-1] in self.stops


def read_turn_end(model_folder: str, tokenizer: Any, chat_settings: Mapping[str, Any] | None = None) -> TurnEnd:
    """Return how a model ends its turns: by the EOS tokens of the tokenizer and of the model's files, as vLLM does."""
    also = _eos_of_engines(model_folder)
    stops = {tokenizer.eos_token_id, *([] if also is None else [also] if isinstance(also, int) else also)}
    behind = behind_a_reply(tokenizer, chat_settings)
    written = next((one for one in behind if one in stops), tokenizer.eos_token_id)
    return TurnEnd(stops=frozenset(stops), written=written)


def _eos_of_engines(model_folder: str) -> int | list[int] | None:
    """Return the EOS of ``generation_config.json``, else of ``config.json``; None if a folder has a tokenizer alone."""
    for read in (GenerationConfig.from_pretrained, _from_model_config):
        try:
            return read(model_folder).eos_token_id
        except OSError:  # there is no such file
            continue
    return None


def _from_model_config(model_folder: str) -> GenerationConfig:
    return GenerationConfig.from_model_config(AutoConfig.from_pretrained(model_folder))


def behind_a_reply(tokenizer: Any, chat_settings: Mapping[str, Any] | None = None) -> list[int]:
    """Return the tokens that the chat template puts after a reply; the first one ends a turn."""
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": REPLY}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, **(chat_settings or {}))
    ids: list[int] = tokenizer.encode(text.rpartition(REPLY)[2], add_special_tokens=False)
    return ids
