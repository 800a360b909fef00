"""Rollouts of one prompt -> requests -> refinements -> rewards -> verdicts, wherever that is done.

One function refines a group. A refine worker calls it for its share of a batch, an agent loop worker as soon as a
group is complete; it knows neither of them nor the TransferQueue.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from recipe.online_refiner.blocks import ConstraintConfig
from recipe.online_refiner.boundary import departure, num_kept_tokens
from recipe.online_refiner.constraint import accepts
from recipe.online_refiner.rollout import Refinement, Rollout
from refiner_worker.client import RefinerClient, RefinerRequestError
from refiner_worker.config import RefinerConfig
from refiner_worker.copying import num_copied
from refiner_worker.parsing import Answer, conversation, decode, parse_answer
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.turn_end import TurnEnd

Score = Callable[[Rollout, list[int]], Awaitable[float]]
"""Rewards a response in the place of the rollout's, given as token ids, exactly as that was rewarded."""


@dataclass(slots=True, kw_only=True)
class Refiner:
    """Refines groups of rollouts. Holds no state between calls."""

    config: RefinerConfig
    constraint: ConstraintConfig
    client: RefinerClient
    prompt: RefinerPrompt
    turn_end: TurnEnd
    score: Score
    max_model_len: int
    """Context length of the refiner, in tokens."""
    max_response_tokens: int
    """Longest response of the policy, all turns of a session; one of a single turn may be refined to a longer one."""
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    """Encodes and decodes, one text after the other, while the event loop sends what is ready."""

    async def refine_group(self, rollouts: list[Rollout]) -> list[Refinement]:
        """Refine the rollouts of one prompt, all at once, and gate the results by their rewards.

        Whatever goes wrong with one costs that refinement only.

        Returns:
            One for each rollout, in order.
        """
        chosen = choose(self.config, rollouts)
        solved = [one for one in sorted(rollouts, key=lambda one: one.session) if self._solves(one)]
        tasks = (self._refine(one, rollouts, n in chosen, solved) for n, one in enumerate(rollouts))
        return list(await asyncio.gather(*tasks))

    def _solves(self, rollout: Rollout) -> bool:
        """Tell whether a response may be the refinement of its siblings: it is maximal, and was not cut."""
        return self.config.is_maximal(rollout.reward) and self.turn_end.is_whole(rollout.turn_ids)

    async def _refine(
        self, rollout: Rollout, rollouts: list[Rollout], is_chosen: bool, solved: list[Rollout]
    ) -> Refinement:
        if not rollout.turn_ids:
            return Refinement(verdict="no_turn")
        if self.config.is_maximal(rollout.reward):
            if self.config.imitate_solved and self._solves(rollout):
                return Refinement(verdict="own", token_ids=rollout.turn_ids, reward=rollout.reward)
            return Refinement(verdict="max_reward")
        siblings = [one for one in solved if one.earlier_ids == rollout.earlier_ids]
        if self.config.use_solved_sibling and siblings:
            sibling = siblings[rollout.session[0] % len(siblings)]
            return self._gated(Refinement(verdict=""), rollout, sibling.turn_ids, sibling.reward)
        if not is_chosen:
            return Refinement(verdict="not_chosen")
        told = await self._on_thread(self._told, rollout, rollouts)
        prompt_ids, num_kept = await self._begin(rollout, told)
        if len(prompt_ids) - num_kept + self.config.response_length > self.max_model_len:
            return Refinement(verdict="too_long")
        candidates: list[Refinement] = []
        while len(candidates) < self.config.n:
            candidates.append(await self._candidate(rollout, prompt_ids, num_kept))
            if self.config.is_maximal(candidates[-1].reward):
                break
        best = max(candidates, key=lambda one: float("-inf") if one.reward is None else one.reward)
        best.num_prompt_tokens = sum(one.num_prompt_tokens for one in candidates)
        if self.config.reads_responses:
            best.num_prompt_tokens += len(prompt_ids) - num_kept + len(rollout.turn_ids)
        best.num_generated_tokens = sum(one.num_generated_tokens for one in candidates)
        best.num_copied_tokens = await self._on_thread(self._num_copied, rollout, best, told)
        return best

    async def _begin(self, rollout: Rollout, told: dict[str, str]) -> tuple[list[int], int]:
        """Return the prompt, and how many ids of the turn it ends with: the beginning of the refiner's answer."""
        if self.config.block is None:
            return await self._on_thread(self._encode, rollout, 0, told), 0
        if not self.config.reads_responses:
            num_kept = await self._on_thread(self._num_kept, rollout)
            return await self._on_thread(self._encode, rollout, num_kept, told), num_kept
        prompt_ids = await self._on_thread(self._encode, rollout, 0, told)
        turn = rollout.turn_ids[: self._most_tokens(rollout)]
        if len(prompt_ids) + len(turn) >= self.max_model_len:
            return prompt_ids, 0
        log_probs = await log_probs_in_time(self.client, prompt_ids, turn)
        departs_at = departure(rollout, log_probs or [], self.config.temperature)
        num_kept = await self._on_thread(self._num_kept, rollout, departs_at)
        return prompt_ids + turn[:num_kept], num_kept

    async def _candidate(self, rollout: Rollout, prompt_ids: list[int], num_kept: int) -> Refinement:
        result = Refinement(verdict="timeout", num_prompt_tokens=len(prompt_ids), num_kept_tokens=num_kept)
        try:
            async with self.client.slot():
                await asyncio.wait_for(self._attempt(rollout, prompt_ids, result), self.config.request_timeout_s)
        except asyncio.TimeoutError:  # not the built-in one before Python 3.11
            result.verdict = "timeout"
        return result

    async def _attempt(self, rollout: Rollout, prompt_ids: list[int], result: Refinement) -> None:
        kept = rollout.turn_ids[: result.num_kept_tokens]
        num_left = self._most_tokens(rollout) - len(kept)
        try:
            generated = await self.client.generate(prompt_ids, self.prompt.stop, num_left)
        except RefinerRequestError as error:
            result.verdict, result.text = "request", str(error)
            return
        result.num_generated_tokens = len(generated)
        answer = await self._on_thread(self._parse, generated, rollout, kept)
        result.text = answer.text
        if answer.failure or len(answer.token_ids) > self._most_tokens(rollout):  # its end may be one token more
            result.verdict = answer.failure or "truncated"
            return
        try:
            reward = await self.score(rollout, rollout.earlier_ids + answer.token_ids)
        except Exception as error:  # a user's reward function on model-written text: it may raise anything
            result.verdict, result.text = "reward", f"{type(error).__name__}: {error}"
            return
        self._gated(result, rollout, answer.token_ids, reward)

    def _gated(self, result: Refinement, rollout: Rollout, token_ids: list[int], reward: float) -> Refinement:
        result.token_ids, result.reward = token_ids, reward
        is_better = accepts(reward, rollout.reward, self.constraint.margin)
        result.verdict = "accepted" if is_better else "not_better"
        return result

    def _num_kept(self, rollout: Rollout, departs_at: int | None = None) -> int:
        return num_kept_tokens(self.config, rollout, self.prompt.tokenizer, self._most_tokens(rollout), departs_at)

    def _told(self, rollout: Rollout, rollouts: list[Rollout]) -> dict[str, str]:
        """Return what of ``refiner.context`` there is to tell; of the group, those who had the same session so far."""
        wanted = self.prompt.limits
        told = {"feedback": rollout.feedback, "solution": rollout.solution}
        if "sibling" in wanted:
            same = [one for one in rollouts if one.earlier_ids == rollout.earlier_ids and one.turn_ids]
            best = max(same, key=lambda one: one.reward)
            told["sibling"] = decode(self.prompt.tokenizer, best.turn_ids) if best.reward > rollout.reward else ""
        return {name: text for name, text in told.items() if text and name in wanted}

    def _encode(self, rollout: Rollout, num_kept: int, told: dict[str, str]) -> list[int]:
        tokenizer, turn = self.prompt.tokenizer, rollout.turn_ids
        chat = conversation(tokenizer, rollout.messages, rollout.prompt_ids, rollout.earlier_ids)
        response = decode(tokenizer, turn)
        return self.prompt.encode(chat, response, rollout.reward, is_begun=num_kept > 0, told=told) + turn[:num_kept]

    def _num_copied(self, rollout: Rollout, refinement: Refinement, told: dict[str, str]) -> int | None:
        texts = [text for name, text in told.items() if name in ("sibling", "solution")]
        if not texts or not refinement.is_scored:
            return None
        sources = [self.prompt.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return num_copied(refinement.token_ids, sources, [rollout.prompt_ids, rollout.response_ids])

    def _most_tokens(self, rollout: Rollout) -> int:
        """Return the longest refinement: a session ends where verl would cut it."""
        longest = self.config.response_length
        return min(longest, self.max_response_tokens - rollout.start) if rollout.start else longest

    def _parse(self, generated: list[int], rollout: Rollout, kept: list[int]) -> Answer:
        tokenizer = self.prompt.tokenizer
        return parse_answer(
            generated,
            response=decode(tokenizer, rollout.turn_ids),
            kept=kept,
            eos_token_id=self.turn_end.of(rollout.turn_ids),
            stop_token_ids=self.turn_end.stops,
            tokenizer=tokenizer,
            stop=self.prompt.stop,
            keeps_stop=not self.prompt.uses_tags,
        )

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, function, *arguments)


def choose(config: RefinerConfig, rollouts: list[Rollout]) -> set[int]:
    """Return the positions of a group's rollouts to refine: at most ``max_refinements_per_group``, of a wanted group.

    The choice depends on prompt, step and sessions alone, not on who makes it or in which order responses came.
    """
    if config.groups == "unsolved" and any(config.is_maximal(one.reward) for one in rollouts):
        return set()
    members = [n for n, one in enumerate(rollouts) if one.turn_ids and not config.is_maximal(one.reward)]
    members.sort(key=lambda index: rollouts[index].session)
    if config.group_choice == "random":
        first = rollouts[0]
        random.Random(f"{first.prompt_ids} {first.request.get('global_steps')}").shuffle(members)
    else:
        members.sort(key=lambda index: rollouts[index].reward)
    return set(members[: config.max_refinements_per_group])


async def reference_log_probs(client: RefinerClient, rollout: Rollout) -> list[float] | None:
    """Return log pi_0 of a response, (response length,); None if no replica answered in time."""
    return await log_probs_in_time(client, rollout.prompt_ids, rollout.response_ids)


async def log_probs_in_time(client: RefinerClient, prompt_ids: list[int], token_ids: list[int]) -> list[float] | None:
    """Return log pi_0 of tokens after a prompt, (number of tokens,); None if no replica answered in time."""
    try:
        async with client.slot():
            request = client.log_probs(prompt_ids, token_ids)
            return await asyncio.wait_for(request, client.config.request_timeout_s)
    except (RefinerRequestError, asyncio.TimeoutError):
        return None
