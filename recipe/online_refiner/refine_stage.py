"""The refine stage: rollouts -> requests -> refinements -> rewards -> accepted pairs.

One rollout is refined by one coroutine that knows nothing of its caller: the trainer runs it for a whole batch, and
whoever has a finished sample at hand can run it for that one.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from recipe.online_refiner.blocks import ConstraintConfig
from recipe.online_refiner.constraint import accepts
from refiner_worker.client import RefinerClient, RefinerRequestError
from refiner_worker.config import RefinerConfig
from refiner_worker.parsing import parse_answer
from refiner_worker.prompts import RefinerPrompt

SKIPPED = ("max_reward", "not_chosen", "too_long")
"""Not attempted: the reward cannot improve; others of the group go first; prompt, response and refinement do not fit
into the refiner's context."""
FAILED = ("timeout", "request", "truncated", "empty", "reward")
"""Attempted without a result: late; refused or lost by the refiner; cut by the length limit; no text; not scored."""
SCORED = ("accepted", "not_better")
"""Attempted, parsed and scored."""


@dataclass(slots=True, kw_only=True)
class Rollout:
    """A response of the policy and its reward.

    Example: ``Rollout(key="u1_0_0", group="u1", messages=[{"role": "user", "content": "1+1?"}], prompt_ids=[5, 6],
    response_ids=[7, 2], reward=-0.3, sample={"data_source": "mini_apps", ...})``.
    """

    key: str
    """Its row in the TransferQueue."""
    group: str
    """The prompt that it answers: rollouts of one prompt are a group."""
    messages: list[dict[str, Any]]
    """The chat prompt."""
    prompt_ids: list[int]
    """(prompt length,) as the policy saw it."""
    response_ids: list[int]
    """(response length,) ended by the EOS token unless cut."""
    reward: float
    """r(s0, a)."""
    sample: dict[str, Any]
    """The data set's columns of this row: what the reward function gets."""
    reward_extra_info: dict[str, Any] = field(default_factory=dict)
    """What the reward function said beside the reward."""


@dataclass(slots=True, kw_only=True)
class Refinement:
    """What became of one rollout in the refine stage.

    Example: ``Refinement(verdict="accepted", token_ids=[9, 2], text="2", reward=1.0)``.
    """

    verdict: str
    """One of SKIPPED, FAILED or SCORED."""
    token_ids: list[int] = field(default_factory=list)
    """a', ended by EOS; empty unless SCORED."""
    text: str = ""
    """a' as text; of a failed one, what was written."""
    reward: float | None = None
    """r(s0, a'); None unless SCORED."""
    num_prompt_tokens: int = 0
    """Of all candidates, as the next one."""
    num_generated_tokens: int = 0
    rewarded_at: float = 0.0
    """When its rollout was rewarded, when its refinement was begun (its group was complete) and when it was done, in
    seconds since the epoch; 0 if not refined in a stream."""
    started_at: float = 0.0
    refined_at: float = 0.0

    @property
    def is_accepted(self) -> bool:
        """Whether the pair acts on the policy."""
        return self.verdict == "accepted"

    @property
    def is_scored(self) -> bool:
        """Whether there is a refined response."""
        return self.verdict in SCORED


Score = Callable[[Rollout, list[int]], Awaitable[float]]
"""Rewards a refined response, given as token ids, exactly as the rollout's response was rewarded."""


@dataclass(slots=True, kw_only=True)
class Refiner:
    """Refines single rollouts. Holds no state between calls."""

    config: RefinerConfig
    constraint: ConstraintConfig
    client: RefinerClient
    prompt: RefinerPrompt
    score: Score
    max_model_len: int
    """Context length of the refiner, in tokens."""

    def text(self, rollout: Rollout) -> str:
        """Return the response as text, as the refiner sees it."""
        return self.prompt.tokenizer.decode(rollout.response_ids, skip_special_tokens=True)

    async def refine(self, rollout: Rollout) -> Refinement:
        """Refine one rollout and gate the result by its reward. Whatever goes wrong costs this refinement only."""
        if self.config.is_maximal(rollout.reward):
            return Refinement(verdict="max_reward")
        prompt_ids = self.prompt.encode(rollout.messages, self.text(rollout), rollout.reward)
        if len(prompt_ids) + self.config.max_new_tokens > self.max_model_len:
            return Refinement(verdict="too_long")
        candidates: list[Refinement] = []
        while len(candidates) < self.config.num_candidates:
            candidates.append(await self._candidate(rollout, prompt_ids))
            if self.config.is_maximal(candidates[-1].reward):
                break
        best = max(candidates, key=lambda one: float("-inf") if one.reward is None else one.reward)
        best.num_prompt_tokens = sum(one.num_prompt_tokens for one in candidates)
        best.num_generated_tokens = sum(one.num_generated_tokens for one in candidates)
        return best

    async def _candidate(self, rollout: Rollout, prompt_ids: list[int]) -> Refinement:
        result = Refinement(verdict="timeout", num_prompt_tokens=len(prompt_ids))
        try:
            async with self.client.slot():
                await asyncio.wait_for(self._attempt(rollout, prompt_ids, result), self.config.request_timeout_s)
        except asyncio.TimeoutError:  # not the built-in one before Python 3.11
            result.verdict = "timeout"
        return result

    async def _attempt(self, rollout: Rollout, prompt_ids: list[int], result: Refinement) -> None:
        try:
            generated = await self.client.generate(prompt_ids, self.prompt.stop)
        except RefinerRequestError as error:
            result.verdict, result.text = "request", str(error)
            return
        result.num_generated_tokens = len(generated)
        tokenizer = self.prompt.tokenizer
        answer = parse_answer(
            generated, eos_token_id=tokenizer.eos_token_id, tokenizer=tokenizer, tags=self.prompt.uses_tags
        )
        result.text = answer.text
        if answer.failure:
            result.verdict = answer.failure
            return
        try:
            result.reward = await self.score(rollout, answer.token_ids)
        except Exception as error:  # a user's reward function on model-written text: it may raise anything
            result.verdict, result.text = "reward", f"{type(error).__name__}: {error}"
            return
        result.token_ids = answer.token_ids
        is_better = accepts(result.reward, rollout.reward, self.constraint.margin)
        result.verdict = "accepted" if is_better or not self.constraint.filter else "not_better"


@dataclass(slots=True, kw_only=True)
class StageResult:
    """A refined batch. ``refinements[i]`` belongs to ``rollouts[i]``."""

    rollouts: list[Rollout]
    refinements: list[Refinement]
    responses: list[str]
    """Each rollout's response as text."""


def choose(config: RefinerConfig, rollouts: list[Rollout], seed: int) -> set[int]:
    """Return the positions of the rollouts to refine: of each group at most ``max_refinements_per_group``."""
    groups: dict[str, list[int]] = {}
    for index, rollout in enumerate(rollouts):
        if not config.is_maximal(rollout.reward):
            groups.setdefault(rollout.group, []).append(index)
    limit, generator = config.max_refinements_per_group, random.Random(seed)
    for members in groups.values():
        if config.group_choice == "random":
            generator.shuffle(members)
        else:
            members.sort(key=lambda index: rollouts[index].reward)
    return {index for members in groups.values() for index in members[:limit]}


async def refine_all(refiner: Refiner, rollouts: list[Rollout], seed: int = 0) -> StageResult:
    """Refine a batch, all rollouts at once: vLLM batches the requests, rewards overlap with generation.

    Args:
        refiner: Who refines.
        rollouts: The batch.
        seed: Of ``group_choice=random``.
    """
    chosen = choose(refiner.config, rollouts, seed)

    async def one(index: int, rollout: Rollout) -> Refinement:
        if index not in chosen and not refiner.config.is_maximal(rollout.reward):
            return Refinement(verdict="not_chosen")
        return await refiner.refine(rollout)

    refinements = await asyncio.gather(*(one(index, rollout) for index, rollout in enumerate(rollouts)))
    return StageResult(
        rollouts=rollouts, refinements=list(refinements), responses=[refiner.text(rollout) for rollout in rollouts]
    )


async def reference_log_probs(client: RefinerClient, rollouts: list[Rollout]) -> list[list[float] | None]:
    """Return log pi_0 of every response, (response length,) each; None where no replica answered."""

    async def one(rollout: Rollout) -> list[float] | None:
        try:
            async with client.slot():
                return await client.log_probs(rollout.prompt_ids, rollout.response_ids)
        except RefinerRequestError:
            return None

    return list(await asyncio.gather(*map(one, rollouts)))
