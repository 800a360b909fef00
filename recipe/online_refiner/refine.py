"""Rollouts of one prompt -> requests -> refinements -> rewards -> verdicts, wherever that is done.

One function refines a group. A refine worker calls it for its share of a batch, an agent loop worker as soon as a
group is complete; it knows neither of them nor the TransferQueue.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rapidfuzz.distance import Levenshtein
from ray import cloudpickle

from recipe.online_refiner.method.constraint import Companion
from recipe.online_refiner.method.eq6 import accepts, is_higher
from recipe.online_refiner.method.pairs import Refinement, Request, Rollout, Verdict, best_of, by_size
from recipe.rewarding.answers import as_number
from refiner_worker.client import RefinerClient, RefinerRequestError, RunEndedError
from refiner_worker.config import RefinerConfig
from refiner_worker.leaks import speaks_of_prompt
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.answer import CLOSE_TAG, OPEN_TAG, Answer, edge, parse_answer
from refiner_worker.text.thoughts import Parts, Thoughts
from refiner_worker.text.tokens import conversation, decode, encode_like
from refiner_worker.text.turn_end import TurnEnd

if TYPE_CHECKING:  # it imports openai
    from refiner_worker.external import ExternalClient

logger = logging.getLogger(__name__)

Score = Callable[[Rollout, list[int]], Awaitable[float]]
"""Rewards a response in the place of the rollout's, given as token ids, exactly as that was rewarded."""

MAX_CHARACTERS = 32
"""Longest text of a token: an answer of more than that for each token is not even encoded."""
BY_SESSION = ("__num_turns__", "tool_extra_fields")
"""What may differ in the reward requests of a group, beside numbers of sessions and token ids."""


class AskedOnce:
    """What a group has asked of pi_0 and of the reward: who would ask the same waits for that answer."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, asyncio.Future[Any]] = {}
        self._num_waiting: Counter[Hashable] = Counter()
        self._billed: set[Hashable] = set()

    async def once(self, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return the answer, and whether this call is the first to get it: so one call is billed for what was written.

        If a call gives up, others wait on. If the last one does, the request is cancelled: who asks later asks anew.
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
        """Cancel what is still being asked."""
        for answer in self._answers.values():
            answer.cancel()


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A response that is being refined."""

    rollout: Rollout
    parts: Parts
    """Of its last turn."""
    told: dict[str, str]
    """The texts of ``refiner.context``, by name."""
    prompt_ids: list[int]
    bill: Request
    asked: AskedOnce
    """By its group."""
    is_billed: bool = False
    """Whether the beginnings of its samples, with their thoughts, are billed to it: others of its group share them."""


@dataclass(slots=True, kw_only=True)
class Refiner:
    """Refines groups of rollouts. Nothing is kept between calls."""

    config: RefinerConfig
    client: RefinerClient
    prompt: RefinerPrompt
    turn_end: TurnEnd
    score: Score
    max_model_len: int
    """Context length of the refiner, in tokens."""
    max_response_tokens: int
    """Longest response of the policy, all turns of a session; one of a single turn may be refined to a longer one."""
    companion: Companion = field(default_factory=Companion)
    """What the constraint asks of pi_0 beside refinements."""
    scores_leaks: bool = False
    """Whether what is rejected as a leak is rewarded all the same, so that somebody can see what the rule costs."""
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """Encodes and decodes, one text after the other, while the event loop sends what is ready."""

    async def refine_group(self, rollouts: list[Rollout]) -> list[Refinement]:
        """Refine the rollouts of one prompt, all at once, and gate the results by their rewards.

        Whatever goes wrong with one costs that refinement only.

        Returns:
            One for each rollout, in order.

        Raises:
            RunEndedError: If nobody is left to ask.
        """
        chosen, asked = choose(self.config, rollouts), AskedOnce()

        async def refine(rollout: Rollout, is_chosen: bool) -> Refinement:
            try:
                return await self._refine(rollout, rollouts, is_chosen, asked)
            except RunEndedError:
                raise
            except Exception as error:  # such as of a template or tokenizer that refuses a row's texts
                return Refinement(verdict=Verdict.FAULT, text=fault(rollout, error))

        try:
            return list(await asyncio.gather(*(refine(one, n in chosen) for n, one in enumerate(rollouts))))
        finally:
            asked.end()

    async def _refine(self, rollout: Rollout, rollouts: list[Rollout], is_chosen: bool, asked: AskedOnce) -> Refinement:
        if not rollout.turn_ids:
            return Refinement(verdict=Verdict.NO_TURN)
        result = Refinement(verdict=Verdict.NOT_ASKED)
        if self.companion.needs_refinement:
            result = await self._rewrite(rollout, rollouts, is_chosen, asked)
        await self.companion.complete(self, rollout, rollouts, result)
        return result

    async def _rewrite(
        self, rollout: Rollout, rollouts: list[Rollout], is_chosen: bool, asked: AskedOnce
    ) -> Refinement:
        if self.config.is_maximal(rollout.reward):
            if self.companion.imitates_solved and self.turn_end.is_whole(rollout.turn_ids):
                return Refinement(verdict=Verdict.OWN, token_ids=rollout.turn_ids, reward=rollout.reward)
            return Refinement(verdict=Verdict.MAX_REWARD)
        if not is_chosen:
            return Refinement(verdict=Verdict.NOT_CHOSEN if rollout.is_wanted else Verdict.OVER_BUDGET)
        parts = await self.on_thread(self._split, rollout, rollout.turn_ids)
        if parts.answer is None and not self._rewrites_thought(parts):
            return Refinement(verdict=Verdict.NO_ANSWER)
        head = [] if self._rewrites_thought(parts) else parts.head
        told = await self.on_thread(self._told, rollout, rollouts)
        prompt_ids = await self.on_thread(self.prompt.encode, await self.on_thread(self._content, rollout, parts, told))
        room = self.max_model_len - len(prompt_ids) - (self.config.response_length - len(head))
        least = (self.config.thought_length or 1) if self.prompt.thoughts else 0
        if room < least or len(head) >= self._most_tokens(rollout):
            return Refinement(verdict=Verdict.TOO_LONG)
        bill = Request(num_kept_tokens=len(head))
        waiting = Refinement(verdict=Verdict.TIMEOUT, num_kept_tokens=bill.num_kept_tokens)
        samples = [replace(waiting) for _ in range(self.config.samples)]
        with contextlib.suppress(TimeoutError):  # each sets another verdict as the last thing that it does
            async with self.client.slot():
                attempt = Attempt(
                    rollout=rollout, parts=parts, told=told, prompt_ids=prompt_ids, bill=bill, asked=asked
                )
                await asyncio.wait_for(self._attempt(attempt, samples), self.config.request_timeout_s)
        result = await self.on_thread(best_sample, samples, rollout.turn_ids, bill)
        result.prompt_ids = prompt_ids
        return result

    async def _attempt(self, attempt: Attempt, samples: list[Refinement]) -> None:
        """Draw all samples by one request, and see what becomes of each."""
        asked_at = time.monotonic()

        async def one(begun: Any, sample: Refinement) -> None:
            try:
                if isinstance(begun, RefinerRequestError):
                    raise begun
                *reasoning, generated = await self._finish(attempt, begun, sample)
                head = await self.on_thread(self._head, attempt.rollout, attempt.parts, *reasoning)
                attempt.bill.latency_s = time.monotonic() - asked_at
                answer = await self.on_thread(self._parse, attempt, generated, head)
                await self._judge(attempt, answer, sample)
            except RefinerRequestError as error:
                sample.verdict, sample.text = Verdict(error.failure), str(error)
            except RunEndedError:
                raise
            except Exception as error:  # it costs this sample only
                sample.verdict, sample.text = Verdict.FAULT, fault(attempt.rollout, error)
            finally:
                sample.num_thought_tokens *= attempt.is_billed

        try:
            begun = await self._begin_samples(attempt)
        except RefinerRequestError as error:
            begun = [error] * len(samples)
        await asyncio.gather(*map(one, begun, samples))

    async def _judge(self, attempt: Attempt, answer: Answer, result: Refinement) -> None:
        """Reward an answer, if it is of use; the same one to the same request is rewarded once."""
        rollout = attempt.rollout
        result.text = answer.text
        if answer.failure or len(answer.token_ids) > self._most_tokens(rollout):  # its end may be one token more
            result.verdict = Verdict(answer.failure or Verdict.TRUNCATED)
            return
        if await self.on_thread(self._is_repeated, answer, rollout):
            # r(s0, a') is r(s0, a), so Eq. 6 cannot hold: the noise of a second reward must not open the gate.
            result.token_ids, result.reward, result.is_repeated = answer.token_ids, rollout.reward, True
            result.verdict = Verdict.NOT_BETTER
            return
        is_leak = self.config.reject_leaks and await self.on_thread(self._leaks, answer, rollout, attempt.told)
        reward = None if is_leak and not self.scores_leaks else await self._reward(attempt, answer, result)
        if is_leak:
            result.verdict, result.text, result.reward = Verdict.LEAK, answer.text, reward
        elif reward is not None:
            result.token_ids, result.reward = answer.token_ids, reward
            result.verdict = Verdict.ACCEPTED if accepts(reward, rollout.reward) else Verdict.NOT_BETTER

    async def _reward(self, attempt: Attempt, answer: Answer, result: Refinement) -> float | None:
        """Return r(s0, a'); None where there is none, and ``result`` says why."""
        rollout = attempt.rollout
        ids = rollout.earlier_ids + answer.token_ids
        try:
            own = cloudpickle.dumps([rollout.request.get(name) for name in BY_SESSION])
            said, _ = await attempt.asked.once((*ids, own), partial(self.score, rollout, ids))
        except Exception as error:  # a user's reward function on model-written text: it may raise anything
            result.verdict, result.text = Verdict.REWARD, f"{type(error).__name__}: {error}"
            return None
        if (reward := as_number(said)) is None:
            result.verdict, result.text = Verdict.REWARD, f"the reward is no finite number: {said!r:.100}"
        return reward

    async def _begin_samples(self, attempt: Attempt) -> list[Any]:
        """Return how each sample begins, by one request: its thought, of a refiner that thinks, or all of it.

        A thought that is not closed may be an answer without one.
        """
        thoughts, num_left = self.prompt.thoughts, self._num_left(attempt)
        stop, stop_ids, limit = self.prompt.stop, list[int](), num_left
        if thoughts is not None:
            stop, stop_ids, _ = await self.on_thread(thoughts.marks, self.prompt.tokenizer)
            longest = self._longest_thought(attempt.prompt_ids, num_left)
            limit = longest if thoughts.is_open else max(longest, num_left)
        prompt_ids = attempt.prompt_ids
        begun, attempt.is_billed = await self._generate(
            attempt, prompt_ids, stop, limit, stop_ids, num=self.config.samples
        )
        return begun

    async def _generate(
        self,
        attempt: Attempt,
        prompt_ids: list[int],
        stop: str | None,
        limit: int,
        stop_ids: Sequence[int] = (),
        num: int = 1,
    ) -> tuple[list[list[int]], bool]:
        """Return so many answers, and whether they are billed to this response; count their tokens.

        The response that asks first is billed for the prompt, and the one that gets the answers first for these: who
        asks first may give up before they come.
        """
        bill = attempt.bill

        async def ask() -> list[list[int]]:
            bill.num_prompt_tokens += len(prompt_ids)
            return await self.client.generate(prompt_ids, stop, limit, stop_ids, num)

        answers, is_first = await self._once(attempt, (*prompt_ids, stop, limit, *stop_ids), ask)
        if is_first:
            bill.num_generated_tokens += sum(map(len, answers))
        return list(answers), is_first

    async def _once(self, attempt: Attempt, question: Hashable, ask: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return an answer of pi_0, and whether this response is billed for it: greedily it is the same for all."""
        if not self.config.is_greedy:
            return await ask(), True
        return await attempt.asked.once(question, ask)

    def _num_left(self, attempt: Attempt) -> int:
        """Return how long an answer may be, behind the tokens with which it is begun."""
        return self._most_tokens(attempt.rollout) - attempt.bill.num_kept_tokens

    async def _finish(self, attempt: Attempt, begun: Any, result: Refinement) -> list[list[int]]:
        """Return the answer of a sample, and before it the reasoning if that is written again.

        Each has the EOS token or stop string that ended it.
        """
        thoughts, stop = self.prompt.thoughts, self.prompt.stop
        if thoughts is None:
            return [begun]
        prompt_ids, parts, num_left = attempt.prompt_ids, attempt.parts, self._num_left(attempt)
        begin, written = list[int](), list[list[int]]()
        if self._rewrites_thought(parts) or self.prompt.uses_tags:
            encode = partial(self.prompt.tokenizer.encode, add_special_tokens=False)
            begin = await self.on_thread(encode, f"\n{OPEN_TAG}\n")
        ids, answer = await self._thought(thoughts, begun, self._longest_thought(prompt_ids, num_left), result)
        if not ids and not self._rewrites_thought(parts):
            return [answer]
        prompt_ids = prompt_ids + ids
        if self._rewrites_thought(parts):
            stop, prompt_ids = CLOSE_TAG, prompt_ids + begin
            (ids,), _ = await self._generate(attempt, prompt_ids, stop, num_left)
            num_left -= len(ids)
            text = await self.on_thread(decode, self.prompt.tokenizer, ids)
            if num_left < 1 or CLOSE_TAG not in text:
                raise RefinerRequestError(text, failure=Verdict.TRUNCATED)
            written, prompt_ids = [ids], prompt_ids + ids
        (answer,), _ = await self._generate(attempt, prompt_ids + begin, stop, num_left)
        # Another closing mark ends more of a thought.
        again = replace(thoughts, is_open=False, header="")
        more, answer = await self.on_thread(again.behind, answer, self.prompt.tokenizer) or ([], answer)
        result.num_thought_tokens += len(more)
        return [*written, answer]

    def _longest_thought(self, prompt_ids: list[int], num_left: int) -> int:
        return min(self.config.longest_thought, self.max_model_len - len(prompt_ids) - num_left)

    async def _thought(
        self, thoughts: Thoughts, ids: list[int], longest: int, result: Refinement
    ) -> tuple[list[int], list[int]]:
        """Return the refiner's thought with its closing mark, and what it has written behind it: all if it has none."""
        _, stop_ids, rest = await self.on_thread(thoughts.marks, self.prompt.tokenizer)
        if stop_ids and ids[-1:] == stop_ids:
            ids = ids + rest
        found = await self.on_thread(thoughts.behind, ids, self.prompt.tokenizer)
        if found is None or len(found[0]) > longest:
            result.num_thought_tokens = len(ids)
            text = await self.on_thread(decode, self.prompt.tokenizer, ids)
            raise RefinerRequestError(text, failure=Verdict.THOUGHT)
        result.num_thought_tokens = len(found[0])
        return found

    def _split(self, rollout: Rollout, ids: list[int]) -> Parts:
        """Return the parts of a last turn of a rollout's session."""
        thoughts, tokenizer = self.prompt.thoughts, self.prompt.tokenizer
        if thoughts is None:
            return Parts(answer=decode(tokenizer, ids))
        if rollout.start:
            thoughts = thoughts.in_turn(rollout.earlier_ids, tokenizer)
        return thoughts.split(ids, tokenizer)

    def _rewrites_thought(self, parts: Parts) -> bool:
        return self.config.rewrites == "response" and bool(parts.thought.strip())

    def answer_in(self, rollout: Rollout, turn_ids: list[int]) -> str:
        """Return a last turn of a rollout's session as text, without its thought; nothing if that does not end."""
        return self._split(rollout, turn_ids).answer or ""

    def _told(self, rollout: Rollout, rollouts: list[Rollout]) -> dict[str, str]:
        """Return the available texts of ``refiner.context``; a sibling is one with the same session so far."""
        wanted = self.prompt.limits
        told = {"feedback": rollout.feedback, "solution": rollout.solution}
        if "sibling" in wanted:
            best = best_of(rollout, rollouts)
            told["sibling"] = self.answer_in(best, best.turn_ids) if is_higher(best.reward, rollout.reward) else ""
        return {name: text for name, text in told.items() if text and name in wanted}

    def _content(self, rollout: Rollout, parts: Parts, told: dict[str, str]) -> str:
        """Return the words of the prompt."""
        tokenizer = self.prompt.tokenizer
        chat = conversation(tokenizer, rollout.messages, rollout.prompt_ids, rollout.earlier_ids)
        thought = parts.thought.strip() if self._rewrites_thought(parts) else None
        return self.prompt.content(chat, parts.answer or "", rollout.reward, told=told, thought=thought)

    def _most_tokens(self, rollout: Rollout) -> int:
        """Return the longest refinement: a session ends where verl would cut it."""
        longest = self.config.response_length
        return min(longest, self.max_response_tokens - rollout.start) if rollout.start else longest

    def _head(self, rollout: Rollout, parts: Parts, reasoning: list[int] | None = None) -> list[int]:
        """Return with what a' begins before its answer: the response's thought, or the reasoning in its place."""
        if reasoning is None:
            return parts.head
        answer = self._parsed(reasoning, rollout, parts.thought, before=edge(parts.thought), stop=CLOSE_TAG)
        if answer.failure or parts.closing.strip() in answer.text:
            raise RefinerRequestError(answer.text, failure=answer.failure or Verdict.TRUNCATED)
        opening, closing = (
            self.prompt.tokenizer.encode(one, add_special_tokens=False) for one in (parts.opening, parts.closing)
        )
        return [*opening, *answer.token_ids[:-1], *closing]

    def _parse(self, attempt: Attempt, generated: list[int], head: list[int]) -> Answer:
        """Return a', which begins with the head."""
        rollout, parts = attempt.rollout, attempt.parts
        tokenizer, response = self.prompt.tokenizer, parts.answer or ""
        if not head and not parts.rest:
            return self._parsed(generated, rollout, response, stop=self.prompt.stop)
        stop = CLOSE_TAG if self._rewrites_thought(parts) else self.prompt.stop
        # The answer behind a thought is as one of its own.
        more = {"before": edge(response), "behind": parts.closing, "stop": stop}
        answer = self._parsed(generated, rollout, response, **more)
        if answer.failure:
            return answer
        if parts.rest and not self._rewrites_thought(parts):
            *_, end = answer.token_ids
            ids = encode_like(parts.rest + answer.text, rollout.turn_ids[len(head) :], tokenizer)
            if ids is None:
                return Answer(token_ids=[], text=answer.text, failure=Verdict.ENCODING)
            answer.token_ids = [*ids, end]
        answer.token_ids = head + answer.token_ids
        answer.text = decode(tokenizer, answer.token_ids)
        return answer

    def _parsed(self, generated: list[int], rollout: Rollout, response: str, **more: Any) -> Answer:
        thoughts, tokenizer = self.prompt.thoughts, self.prompt.tokenizer
        if thoughts is not None and thoughts.is_opened_in(generated, tokenizer):
            return Answer(token_ids=[], text=decode(tokenizer, generated), failure=Verdict.TRUNCATED)
        return parse_answer(
            generated,
            response=response,
            eos_token_id=self.turn_end.of(rollout.turn_ids),
            stop_token_ids=self.turn_end.stops,
            tokenizer=tokenizer,
            may_think=self.config.thoughts is not False,
            **more,
        )

    def _leaks(self, answer: Answer, rollout: Rollout, told: dict[str, str]) -> bool:
        """Tell whether a' speaks of what its prompt does not show."""
        tokenizer = self.prompt.tokenizer
        given = [
            decode(tokenizer, rollout.prompt_ids + rollout.response_ids),
            told.get("sibling"),
            told.get("solution"),
        ]
        return speaks_of_prompt(
            tokenizer.decode(answer.token_ids),  # a control token that is left out would join two words
            own=self.prompt.own_words(rollout.reward, told),
            given="\n".join(filter(None, given)),
            reward=rollout.reward,
        )

    def _is_repeated(self, answer: Answer, rollout: Rollout) -> bool:
        """Tell whether an answer is the response: the reward sees the text of both."""
        tokenizer, turn = self.prompt.tokenizer, rollout.turn_ids
        return answer.token_ids == turn or decode(tokenizer, answer.token_ids) == decode(tokenizer, turn)

    async def on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns that encodes or decodes texts."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)


class TextRefiner(Refiner):
    """Asks servers that read and write words, and puts what they write into the policy's tokens."""

    client: "ExternalClient"

    async def _begin_samples(self, attempt: Attempt) -> list[Any]:
        """Return what a server has written of each sample, or why it is of no use."""
        bill = attempt.bill
        content = await self.on_thread(self._content, attempt.rollout, attempt.parts, attempt.told)
        thoughts, most = self.prompt.thoughts, self._num_left(attempt)
        if thoughts is not None or self.config.thought_length:
            most += self.config.longest_thought
        sent = self.prompt.stop if thoughts is None else None  # such a stop may stand in a thought

        async def ask() -> tuple[list[Any], Request]:
            return await self.client.write(content, sent, not self.prompt.uses_tags, most, bill), bill

        (written, said), attempt.is_billed = await self._once(attempt, (content, most), ask)
        if attempt.is_billed:
            bill.num_prompt_tokens = said.num_prompt_tokens or len(attempt.prompt_ids)
            texts = [thought + text for thought, text, _ in (one for one in written if isinstance(one, tuple))]
            bill.num_generated_tokens = said.num_generated_tokens or await self.on_thread(self._num_tokens, *texts)
        return list(written)

    def _num_tokens(self, *texts: str) -> int:
        """Return how many tokens of the policy some texts have; half a character counts as a question mark."""
        return sum(len(self.prompt.tokenizer.encode(text.encode(errors="replace").decode())) for text in texts)

    async def _finish(self, attempt: Attempt, begun: Any, result: Refinement) -> list[list[int]]:
        thought, text, is_whole = begun
        rollout, parts, limit = attempt.rollout, attempt.parts, self._num_left(attempt)
        stop, thoughts = self.prompt.stop, self.prompt.thoughts
        if not is_whole and thought and not text.strip():
            raise RefinerRequestError(thought, failure=Verdict.THOUGHT)
        opening, closing = (thoughts.opening, thoughts.closing) if thoughts else ("<think>", "</think>")
        begins = text.lstrip().startswith(opening) and self.config.thoughts is not False
        if closing in text and (thoughts is not None or begins):
            before, mark, text = text.rpartition(closing)
            thought += before + mark
        elif begins and not thought:
            raise RefinerRequestError(text, failure=Verdict.THOUGHT if thoughts else Verdict.TRUNCATED)
        result.num_thought_tokens = await self.on_thread(self._num_tokens, thought)
        reasoning, end = list[str](), self.turn_end.of(rollout.turn_ids)
        if self._rewrites_thought(parts):
            before, tag, text = text.partition(CLOSE_TAG)
            if not tag:
                raise RefinerRequestError(before, failure=Verdict.TRUNCATED)
            reasoning = [before.partition(OPEN_TAG)[2] or before]
            stop = CLOSE_TAG
        if stop == CLOSE_TAG and OPEN_TAG in text:  # nobody has begun the answer with it, as for replicas
            text = text.partition(OPEN_TAG)[2]
        text = text[: text.find(stop) + len(stop)] if stop and stop in text else text
        if len(text) > limit * MAX_CHARACTERS:
            raise RefinerRequestError(text[:limit], failure="truncated")
        written = list[list[int]]()
        for part in [*reasoning, text]:
            ids = await self.on_thread(encode_like, part, rollout.turn_ids, self.prompt.tokenizer)
            if ids is None:
                raise RefinerRequestError(text, failure=Verdict.ENCODING)
            written.append([*ids, end])
        if not is_whole:
            written[-1].pop()
        return written


def fault(rollout: Rollout, error: Exception) -> str:
    """Log an error that costs a refinement, with its traceback, and return it in one line."""
    logger.error("response %s is not refined", rollout.key, exc_info=error)
    return f"{type(error).__name__}: {error}"


def choose(config: RefinerConfig, rollouts: list[Rollout]) -> set[int]:
    """Return the positions of a group's rollouts to refine.

    At most ``max_refinements_per_group``, lowest rewards first; with ``only_unsolved`` none where one is maximal. The
    choice depends on rewards and sessions alone, not on who makes it or in which order responses came.
    """
    if config.only_unsolved and any(config.is_maximal(one.reward) for one in rollouts):
        return set()
    members = [
        n for n, one in enumerate(rollouts) if one.turn_ids and one.is_wanted and not config.is_maximal(one.reward)
    ]
    members.sort(key=lambda index: (by_size(rollouts[index].reward), rollouts[index].session))
    return set(members[: config.max_refinements_per_group])


def best_sample(samples: list[Refinement], response_ids: list[int], bill: Request) -> Refinement:
    """Return the sample with the highest reward, of equal ones the nearest to the response; of failures the first.

    It gets the numbers of the whole request (``bill``).
    """
    rewards = [(one.reward or 0.0, one) for one in samples if one.verdict.is_scored]
    highest = max((reward for reward, _ in rewards), default=0.0)
    best = [one for reward, one in rewards if not is_higher(highest, reward)] or samples[:1]
    if len(best) > 1:
        best.sort(key=lambda one: Levenshtein.distance(response_ids, one.token_ids))
    bill.num_samples, bill.num_better = len(samples), sum(one.verdict is Verdict.ACCEPTED for one in samples)
    bill.num_thought_tokens = sum(one.num_thought_tokens for one in samples)
    return replace(best[0], **{one.name: getattr(bill, one.name) for one in fields(Request)})
