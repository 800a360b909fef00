"""From an attempt to what the refiner writes: replicas are asked with token ids, servers by URL with words."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from recipe.online_refiner.method.pairs import Bill, Verdict
from recipe.online_refiner.refine.account import Account
from recipe.online_refiner.refine.attempt import Attempt, Shape, Written
from recipe.online_refiner.refine.language import Language
from refiner_worker.client import RefinerClient, RefinerRequestError
from refiner_worker.config import RefinerConfig
from refiner_worker.pictures import Prompt, content_of, pictures_of
from refiner_worker.text.answer import CLOSE_TAG, OPEN_TAG
from refiner_worker.text.thoughts import Thoughts

if TYPE_CHECKING:  # it imports openai
    from refiner_worker.external import ExternalClient

Begun = TypeVar("Begun")
Sent = tuple[str, str, bool]
"""What a server sends: its thought, its text, and whether the text came to its end."""

MAX_CHARACTERS = 32
"""Longest text of a token: an answer with more characters for each token is not even encoded."""
MARKS = ("<think>", "</think>")
"""Marks of a thought in a server's text, if the policy's chat template has none."""


class Asker(ABC, Generic[Begun]):
    """A way to ask for the samples of an attempt: one request begins all, then each is finished by itself."""

    @abstractmethod
    async def begin(self, attempt: Attempt, account: Account) -> Sequence[Begun | RefinerRequestError]:
        """Return how each sample begins, or why it is of no use.

        Raises:
            RefinerRequestError: If no replica or server could answer.
        """

    @abstractmethod
    async def finish(self, attempt: Attempt, account: Account, begun: Begun) -> Written:
        """Return a whole sample.

        Raises:
            RefinerRequestError: If no replica or server could answer, or the sample is of no use; the error's
                ``failure`` is a verdict.
        """


@dataclass(slots=True, frozen=True, kw_only=True)
class Replicas(Asker[list[int]]):
    """The way to ask replicas, which take and give token ids.

    A model that thinks writes its thought first, and then the answer, which has a limit of its own.
    """

    client: RefinerClient
    language: Language
    num_samples: int

    async def begin(self, attempt: Attempt, account: Account) -> Sequence[list[int] | RefinerRequestError]:
        """Return the beginning of each sample: the thought if the refiner thinks, else the whole sample.

        A thought that is not closed may be an answer without one, so it may be as long as an answer.
        """
        thoughts, stop, stop_ids = self.language.thoughts, attempt.shape.stop, list[int]()
        limit = attempt.num_left
        if thoughts is not None:
            stop, stop_ids, _ = await self.language.on_thread(thoughts.marks, self.language.tokenizer)
            limit = attempt.longest_thought if thoughts.is_open else max(attempt.longest_thought, limit)
        begun, account.is_billed = await self._generate(
            account, attempt.prompt, stop, limit, stop_ids, num=self.num_samples
        )
        return begun

    async def finish(self, attempt: Attempt, account: Account, begun: list[int]) -> Written:
        """Return a sample: what stands behind the thought that it begins with, or behind further requests."""
        shape, language = attempt.shape, self.language
        if language.thoughts is None:
            return Written(answer=begun)
        own_thought, answer = await self._own_thought(language.thoughts, attempt, account, begun)
        if not own_thought and not shape.writes_thought:
            return Written(answer=answer)
        tag = await language.on_thread(language.encode, f"\n{OPEN_TAG}\n") if shape.stop == CLOSE_TAG else []
        prompt, num_left, thought = attempt.prompt + own_thought + tag, attempt.num_left, None
        if shape.writes_thought:
            thought = await self._response_thought(account, prompt, num_left)
            prompt, num_left = prompt + thought + tag, num_left - len(thought)
        (answer,), _ = await self._generate(account, prompt, shape.stop, num_left)
        # Another closing mark ends more of a thought.
        again = replace(language.thoughts, is_open=False, header="")
        more, answer = await language.on_thread(again.behind, answer, language.tokenizer) or ([], answer)
        account.add_thought(len(more))
        return Written(answer=answer, thought=thought)

    async def _own_thought(
        self, thoughts: Thoughts, attempt: Attempt, account: Account, ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Return the refiner's thought with its closing mark, and what stands behind it: all if there is no thought."""
        tokenizer, on_thread = self.language.tokenizer, self.language.on_thread
        _, stop_ids, rest = await on_thread(thoughts.marks, tokenizer)
        if stop_ids and ids[-1:] == stop_ids:
            ids = ids + rest
        found = await on_thread(thoughts.behind, ids, tokenizer)
        if found is None or len(found[0]) > attempt.longest_thought:
            account.add_thought(len(ids))
            raise RefinerRequestError(await on_thread(self.language.decode, ids), failure=Verdict.THOUGHT)
        account.add_thought(len(found[0]))
        thought, behind = found
        return thought, behind

    async def _response_thought(self, account: Account, prompt: Prompt, num_left: int) -> list[int]:
        """Return the response's thought, written anew up to the closing tag; it must leave room for an answer."""
        (ids,), _ = await self._generate(account, prompt, CLOSE_TAG, num_left)
        text = await self.language.on_thread(self.language.decode, ids)
        if len(ids) >= num_left or CLOSE_TAG not in text:
            raise RefinerRequestError(text, failure=Verdict.TRUNCATED)
        return ids

    async def _generate(
        self,
        account: Account,
        prompt: Prompt,
        stop: str | None,
        limit: int,
        stop_ids: Sequence[int] = (),
        num: int = 1,
    ) -> tuple[list[list[int]], bool]:
        """Return ``num`` answers of at most ``limit`` tokens, and whether they are billed to this response."""

        async def ask() -> list[list[int]]:
            account.bill.num_prompt_tokens += len(prompt)
            return await self.client.generate(prompt, stop, limit, stop_ids, num)

        answers, is_billed = await account.once((*prompt, stop, limit, *stop_ids), ask)
        if is_billed:
            account.bill.num_generated_tokens += sum(map(len, answers))
        return list(answers), is_billed


@dataclass(slots=True, frozen=True, kw_only=True)
class Servers(Asker[Sent]):
    """The way to ask servers by URL, which take and give words: these are encoded in the policy's tokens."""

    client: "ExternalClient"
    language: Language
    config: RefinerConfig

    async def begin(self, attempt: Attempt, account: Account) -> Sequence[Sent | RefinerRequestError]:
        """Return what a server has written of each sample, or why it is of no use."""
        bill, most, stop = account.bill, attempt.num_left, attempt.shape.stop
        if self.language.thoughts is not None or self.config.thought_length:
            most += self.config.longest_thought
        if self.language.thoughts is not None:
            stop = None  # it may stand in a thought

        async def ask() -> tuple[list[Any], Bill]:
            content = await self.language.on_thread(content_of, attempt.words, pictures_of(attempt.prompt))
            return await self.client.write(content, stop, stop != CLOSE_TAG, most, bill), bill

        (sent, asked), account.is_billed = await account.once((attempt.words, most), ask)
        if account.is_billed:
            bill.num_prompt_tokens = asked.num_prompt_tokens or len(attempt.prompt)
            bill.num_generated_tokens = asked.num_generated_tokens
        if account.is_billed and not bill.num_generated_tokens:  # the server does not tell it
            texts = [thought + text for thought, text, _ in (one for one in sent if isinstance(one, tuple))]
            bill.num_generated_tokens = await self.language.on_thread(self.language.num_tokens, *texts)
        return list(sent)

    async def finish(self, attempt: Attempt, account: Account, begun: Sent) -> Written:
        """Return a sample in the policy's tokens; its last part has an end unless the server was cut off."""
        language, turn = self.language, attempt.rollout.turn_ids
        thought, text = behind_thought(begun, language.thoughts, may_think=language.may_think)
        account.add_thought(await language.on_thread(language.num_tokens, thought))
        parts = split_text(text, attempt.shape)
        if len(parts[-1]) > attempt.num_left * MAX_CHARACTERS:
            raise RefinerRequestError(parts[-1][: attempt.num_left], failure=Verdict.TRUNCATED)
        written = list[list[int]]()
        for part in parts:
            ids = await language.on_thread(language.encode_like, part, turn)
            if ids is None:
                raise RefinerRequestError(parts[-1], failure=Verdict.ENCODING)
            written.append([*ids, language.turn_end.of(turn)])
        *_, is_whole = begun
        if not is_whole:
            written[-1].pop()
        return Written(answer=written[-1], thought=written[0] if attempt.shape.writes_thought else None)


def behind_thought(sent: Sent, thoughts: Thoughts | None, *, may_think: bool) -> tuple[str, str]:
    """Return the thought of a server, which it sends apart or before its answer, and the answer.

    Raises:
        RefinerRequestError: If the server was cut off within its thought.
    """
    thought, text, is_whole = sent
    if not is_whole and thought and not text.strip():
        raise RefinerRequestError(thought, failure=Verdict.THOUGHT)
    opening, closing = (thoughts.opening, thoughts.closing) if thoughts else MARKS
    begins = text.lstrip().startswith(opening) and may_think
    if closing in text and (thoughts is not None or begins):
        before, mark, text = text.rpartition(closing)
        return thought + before + mark, text
    if begins and not thought:
        raise RefinerRequestError(text, failure=Verdict.THOUGHT if thoughts else Verdict.TRUNCATED)
    return thought, text


def split_text(text: str, shape: Shape) -> list[str]:
    """Return the parts of a server's text that the shape asks for, the answer last, up to the text that ends it.

    Raises:
        RefinerRequestError: If the response's thought, written anew, has no end.
    """
    parts, stop = list[str](), shape.stop
    if shape.writes_thought:
        before, tag, text = text.partition(CLOSE_TAG)
        if not tag:
            raise RefinerRequestError(before, failure=Verdict.TRUNCATED)
        parts = [before.partition(OPEN_TAG)[2] or before]
    if stop == CLOSE_TAG and OPEN_TAG in text:  # nobody has begun the answer with it, as for replicas
        text = text.partition(OPEN_TAG)[2]
    return [*parts, text[: text.find(stop) + len(stop)] if stop and stop in text else text]
