"""The policy's tokens and their text, as one refiner reads and writes them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from recipe.online_refiner.method.pairs import Rollout
from refiner_worker.text.answer import Answer, Place, parse_answer
from refiner_worker.text.thoughts import Parts, Thoughts
from refiner_worker.text.tokens import conversation, decode, encode_like
from refiner_worker.text.turn_end import TurnEnd


@dataclass(slots=True, frozen=True, kw_only=True)
class Language:
    """How texts become the policy's tokens and tokens become texts. It is the same for all responses of a run."""

    tokenizer: Any
    """The policy's tokenizer, which the reference model shares."""
    thoughts: Thoughts | None
    """The marks of a thought; None if the models do not think."""
    turn_end: TurnEnd
    """The tokens that end a turn."""
    may_think: bool
    """Whether ``<think>`` at the beginning of an answer opens a thought though the chat template has no such mark."""
    thread: ThreadPoolExecutor
    """The thread that encodes and decodes, one text after the other, while the event loop sends what is ready."""

    async def on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function that encodes or decodes texts."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def encode_like(self, text: str, turn_ids: list[int]) -> list[int] | None:
        """Return the token ids of a text; where it repeats the turn, the turn's own. None: no ids give this text."""
        return encode_like(text, turn_ids, self.tokenizer)

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids without special tokens."""
        return decode(self.tokenizer, ids)

    def num_tokens(self, *texts: str) -> int:
        """Return the number of tokens of some texts together; half a character counts as a question mark."""
        return sum(len(self.tokenizer.encode(text.encode(errors="replace").decode())) for text in texts)

    def split(self, rollout: Rollout, turn_ids: list[int]) -> Parts:
        """Return the parts of a turn that ends the rollout's session so far: thought, marks, answer."""
        if self.thoughts is None:
            return Parts(answer=self.decode(turn_ids))
        thoughts = self.thoughts
        if rollout.start:
            thoughts = thoughts.in_turn(rollout.earlier_ids, self.tokenizer)
        return thoughts.split(turn_ids, self.tokenizer)

    def answer_in(self, rollout: Rollout, turn_ids: list[int]) -> str:
        """Return the answer in such a turn as text; empty if the turn's thought does not end."""
        return self.split(rollout, turn_ids).answer or ""

    def chat_before(self, rollout: Rollout) -> list[dict[str, Any]]:
        """Return the messages that the rollout's last turn answers."""
        return conversation(self.tokenizer, rollout.messages, rollout.prompt_ids, rollout.earlier_ids)

    def is_same(self, ids: list[int], other: list[int]) -> bool:
        """Return whether two responses are the same for the reward function, which sees their texts."""
        return ids == other or self.decode(ids) == self.decode(other)

    def parse(self, written: list[int], rollout: Rollout, place: Place) -> Answer:
        """Return what was written as the policy would have ended it, or why it is of no use.

        Args:
            written: Token ids with what ended them.
            rollout: The response that is refined.
            place: The place in the response for which they were written.
        """
        if self.thoughts is not None and self.thoughts.is_opened_in(written, self.tokenizer):
            return Answer(token_ids=[], text=self.decode(written), failure="truncated")
        return parse_answer(
            written,
            place,
            eos_token_id=self.turn_end.of(rollout.turn_ids),
            stop_token_ids=self.turn_end.stops,
            tokenizer=self.tokenizer,
            may_think=self.may_think,
        )
