"""The refine stage for one prompt: choose responses, refine them, and return a result for each response."""

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any

from recipe.online_refiner.method.constraint import Companion
from recipe.online_refiner.method.pairs import Bill, Refinement, Rollout, Verdict, by_size
from recipe.online_refiner.refine.account import Account, AskedOnce
from recipe.online_refiner.refine.ask import Asker, Begun, Replicas, Servers
from recipe.online_refiner.refine.attempt import Attempt
from recipe.online_refiner.refine.judge import Judge, Score, best_of_samples
from recipe.online_refiner.refine.language import Language
from recipe.online_refiner.refine.prepare import Preparation
from recipe.online_refiner.refine.reference import ReferenceModel
from refiner_worker.client import RefinerClient, RefinerRequestError, RunEndedError
from refiner_worker.config import External, RefinerConfig
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.turn_end import TurnEnd

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Refiner:
    """A refiner of groups of rollouts. It keeps nothing between calls."""

    config: RefinerConfig
    client: RefinerClient
    """The client that asks the reference model: an :class:`~refiner_worker.external.ExternalClient` by URL."""
    prompt: RefinerPrompt
    turn_end: TurnEnd
    score: Score
    max_model_len: int
    """The context length of the refiner, in tokens."""
    max_response_tokens: int
    """The longest response of the policy in tokens, all turns together. A response of one turn may become longer."""
    companion: Companion = field(default_factory=Companion)
    """What the constraint asks of the reference model beside refinements."""
    scores_leaks: bool = False
    """Whether a response that is rejected as a leak is rewarded all the same."""
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """The thread that encodes and decodes (:class:`~recipe.online_refiner.refine.language.Language`)."""

    async def refine_group(self, rollouts: list[Rollout]) -> list[Refinement]:
        """Refine the rollouts of one prompt, all at once, and gate the results by their rewards.

        An error with one rollout costs the refinement of that rollout only.

        Returns:
            The refinement of each rollout, in order.

        Raises:
            RunEndedError: If no replica or server of the refiner is left.
        """
        chosen, asked = choose(self.config, rollouts), AskedOnce()

        async def refine(place: int, rollout: Rollout) -> Refinement:
            try:
                return await self._refine(rollout, rollouts, place in chosen, asked)
            except RunEndedError:
                raise
            except Exception as error:  # such as of a template or tokenizer that refuses a row's texts
                return Refinement(verdict=Verdict.FAULT, text=fault(rollout, error))

        try:
            return list(await asyncio.gather(*(refine(*one) for one in enumerate(rollouts))))
        finally:
            asked.end()

    async def _refine(self, rollout: Rollout, rollouts: list[Rollout], is_chosen: bool, asked: AskedOnce) -> Refinement:
        if not rollout.turn_ids:
            return Refinement(verdict=Verdict.NO_TURN)
        result = Refinement(verdict=Verdict.NOT_ASKED)
        if self.companion.needs_refinement:
            result = self._skipped(rollout, is_chosen) or await self._rewrite(rollout, rollouts, asked)
        reference = ReferenceModel(
            config=self.config, client=self.client, language=self.language, max_model_len=self.max_model_len
        )
        await self.companion.complete(reference, rollout, rollouts, result)
        return result

    def _skipped(self, rollout: Rollout, is_chosen: bool) -> Refinement | None:
        """Return the result of a rollout that is not to be refined; None if it is."""
        if self.config.is_maximal(rollout.reward):
            if self.companion.imitates_solved and self.turn_end.is_whole(rollout.turn_ids):
                return Refinement(verdict=Verdict.OWN, token_ids=rollout.turn_ids, reward=rollout.reward)
            return Refinement(verdict=Verdict.MAX_REWARD)
        if not is_chosen:
            return Refinement(verdict=Verdict.NOT_CHOSEN if rollout.is_wanted else Verdict.OVER_BUDGET)
        return None

    async def _rewrite(self, rollout: Rollout, rollouts: list[Rollout], asked: AskedOnce) -> Refinement:
        """Return the best of the samples that the refiner writes, with what they cost together."""
        language = self.language
        preparation = Preparation(
            config=self.config,
            prompt=self.prompt,
            language=language,
            max_model_len=self.max_model_len,
            max_response_tokens=self.max_response_tokens,
        )
        attempt = await preparation.attempt(rollout, rollouts)
        if isinstance(attempt, Verdict):
            return Refinement(verdict=attempt)
        bill = Bill(num_samples=self.config.samples)
        account = Account(bill=bill, asked=asked, is_greedy=self.config.is_greedy)
        samples = [Refinement(verdict=Verdict.TIMEOUT) for _ in range(self.config.samples)]
        with contextlib.suppress(TimeoutError):  # the samples that are done by then count
            async with self.client.slot():
                await asyncio.wait_for(
                    self._draw(self._asker, attempt, account, samples), self.config.request_timeout_s
                )
        best = await language.on_thread(best_of_samples, samples, rollout.turn_ids)
        return replace(
            best,
            prompt_ids=attempt.prompt,
            num_kept_tokens=len(attempt.shape.head),
            num_better=sum(one.verdict is Verdict.ACCEPTED for one in samples),
            **{one.name: getattr(bill, one.name) for one in fields(Bill)},
        )

    async def _draw(self, asker: Asker[Begun], attempt: Attempt, account: Account, samples: list[Refinement]) -> None:
        """Draw all samples by one request, and put what becomes of each in its place in ``samples``."""
        asked_at, language = time.monotonic(), self.language
        judge = Judge(
            score=self.score,
            language=language,
            prompt=self.prompt,
            rejects_leaks=self.config.reject_leaks,
            scores_leaks=self.scores_leaks,
        )

        async def one(place: int, begun: Begun | RefinerRequestError) -> None:
            try:
                if isinstance(begun, RefinerRequestError):
                    raise begun
                written = await asker.finish(attempt, account, begun)
                account.bill.latency_s = time.monotonic() - asked_at
                answer = await language.on_thread(attempt.shape.assemble, language, attempt, written)
                samples[place].text = answer.text  # of one whose reward comes too late as well
                samples[place] = await judge.judge(attempt, answer, account.asked)
            except RefinerRequestError as error:
                samples[place] = Refinement(verdict=Verdict(error.failure), text=str(error))
            except RunEndedError:
                raise
            except Exception as error:  # it costs this sample only
                samples[place] = Refinement(verdict=Verdict.FAULT, text=fault(attempt.rollout, error))

        try:
            begun = await asker.begin(attempt, account)
        except RefinerRequestError as error:
            begun = [error] * len(samples)
        await asyncio.gather(*(one(*numbered) for numbered in enumerate(begun)))

    @property
    def language(self) -> Language:
        """The policy's tokens and their text."""
        return Language(
            tokenizer=self.prompt.tokenizer,
            thoughts=self.prompt.thoughts,
            turn_end=self.turn_end,
            may_think=self.config.thoughts is not False,
            thread=self.thread,
        )

    @property
    def _asker(self) -> Asker[Any]:
        client: Any = self.client
        if isinstance(self.config, External):
            return Servers(client=client, language=self.language, config=self.config)
        return Replicas(client=client, language=self.language, num_samples=self.config.samples)


class Unrefined:
    """The refiner of a data source whose weight is 0: it asks for nothing."""

    async def refine_group(self, rollouts: list[Rollout]) -> list[Refinement]:
        """Return a result without a refinement for each rollout of one prompt."""
        return [Refinement(verdict=Verdict.NOT_ASKED) for _ in rollouts]


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
