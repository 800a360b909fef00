"""What requests cost, and which responses of a group share their answers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

from recipe.online_refiner.method.pairs import Bill


class AskedOnce:
    """The questions of a group, each asked once: an equal question to the refiner or the reward waits for it."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, asyncio.Future[Any]] = {}
        self._num_waiting: Counter[Hashable] = Counter()
        self._billed: set[Hashable] = set()

    async def once(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the answer, and whether this call is the first to get it: that call is billed for what was written.

        If a call gives up, the others wait on. If the last one gives up, the request is cancelled, and a later call
        asks anew.
        """
        if question not in self._answers:
            self._answers[question] = asyncio.ensure_future(ask())
        answer = self._answers[question]
        self._num_waiting[question] += 1
        try:
            found = await asyncio.shield(answer)
            is_first = question not in self._billed
            self._billed.add(question)
            return found, is_first
        finally:
            self._num_waiting[question] -= 1
            if not answer.done() and not self._num_waiting[question]:
                answer.cancel()
                self._answers.pop(question, None)

    def end(self) -> None:
        """Cancel the questions that have no answer yet."""
        for answer in self._answers.values():
            answer.cancel()


@dataclass(slots=True, kw_only=True)
class Account:
    """What the requests for one response cost.

    The response that asks is billed for the prompt and for retries, the one that gets the answer first for its tokens:
    the response that asks may give up before the answer comes.
    """

    bill: Bill
    """The numbers so far."""
    asked: AskedOnce
    """The questions of the response's group."""
    is_greedy: bool
    """Whether a prompt has one answer, which equal questions share."""
    is_billed: bool = False
    """Whether the beginnings of the samples, with their thoughts, are billed to this response, not to another one."""

    async def once(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the reference model's answer, and whether it is billed to this response."""
        if not self.is_greedy:
            return await ask(), True
        return await self.asked.once(question, ask)

    def add_thought(self, num_tokens: int) -> None:
        """Add tokens of the refiner's own thought, if the beginnings are billed to this response."""
        self.bill.num_thought_tokens += num_tokens * self.is_billed
