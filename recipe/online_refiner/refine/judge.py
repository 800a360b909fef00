"""From a refined response to its verdict: it may be useless, a repetition or a leak; else it is rewarded and gated."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rapidfuzz.distance import Levenshtein
from ray import cloudpickle

from recipe.online_refiner.method.eq6 import accepts, is_higher
from recipe.online_refiner.method.pairs import Refinement, Rollout, Verdict
from recipe.online_refiner.refine.account import AskedOnce
from recipe.online_refiner.refine.attempt import Attempt
from recipe.online_refiner.refine.language import Language
from recipe.rewarding.answers import as_number
from refiner_worker.leaks import speaks_of_prompt
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.answer import Answer

Score = Callable[[Rollout, list[int]], Awaitable[float]]
"""A function that rewards a response, given as token ids, exactly as the rollout's own response was rewarded."""

BY_SESSION = ("__num_turns__", "tool_extra_fields")
"""Fields in which the reward requests of a group may differ, beside numbers of sessions and token ids."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Judge:
    """The part of the refiner that decides what becomes of a refined response."""

    score: Score
    language: Language
    prompt: RefinerPrompt
    rejects_leaks: bool
    """Whether a response that speaks of what the policy never sees is rejected (``refiner.reject_leaks``)."""
    scores_leaks: bool
    """Whether a rejected leak is rewarded all the same, so that somebody can see what the rule costs."""

    async def judge(self, attempt: Attempt, answer: Answer, asked: AskedOnce) -> Refinement:
        """Return the refinement with its verdict. Equal refinements in a group are rewarded once."""
        rollout, ids = attempt.rollout, answer.token_ids
        if answer.failure or len(ids) > attempt.most_tokens:  # the token that ends it may be one too many
            return Refinement(verdict=Verdict(answer.failure or Verdict.TRUNCATED), text=answer.text)
        if await self.language.on_thread(self.language.is_same, ids, rollout.turn_ids):
            # r(s0, a') is r(s0, a), so Eq. 6 cannot hold: the noise of a second reward must not open the gate.
            return Refinement(
                verdict=Verdict.NOT_BETTER, token_ids=ids, text=answer.text, reward=rollout.reward, is_repeated=True
            )
        is_leak = self.rejects_leaks and await self.language.on_thread(self._is_leak, attempt, answer)
        if is_leak and not self.scores_leaks:
            return Refinement(verdict=Verdict.LEAK, text=answer.text)
        reward, why = await self._reward(rollout, ids, asked)
        if is_leak:
            return Refinement(verdict=Verdict.LEAK, text=answer.text, reward=reward)
        if reward is None:
            return Refinement(verdict=Verdict.REWARD, text=why)
        verdict = Verdict.ACCEPTED if accepts(reward, rollout.reward) else Verdict.NOT_BETTER
        return Refinement(verdict=verdict, token_ids=ids, text=answer.text, reward=reward)

    async def _reward(self, rollout: Rollout, turn_ids: list[int], asked: AskedOnce) -> tuple[float | None, str]:
        """Return r(s0, a') of the session with this last turn; None and the reason if there is no reward."""
        ids = rollout.earlier_ids + turn_ids
        try:
            own = cloudpickle.dumps([rollout.reward_columns.get(name) for name in BY_SESSION])
            said, _ = await asked.once((*ids, own), partial(self.score, rollout, ids))
        except Exception as error:  # a user's reward function on model-written text: it may raise anything
            return None, f"{type(error).__name__}: {error}"
        return as_number(said), f"the reward is no finite number: {said!r:.100}"

    def _is_leak(self, attempt: Attempt, answer: Answer) -> bool:
        """Return whether a' speaks of what the policy's prompt does not show."""
        rollout, told, tokenizer = attempt.rollout, attempt.told, self.language.tokenizer
        given = [
            self.language.decode(rollout.prompt_ids + rollout.response_ids),
            told.get("sibling"),
            told.get("solution"),
        ]
        return speaks_of_prompt(
            tokenizer.decode(answer.token_ids),  # a control token that is left out would join two words
            own=self.prompt.own_words(rollout.reward, told),
            given="\n".join(filter(None, given)),
            reward=rollout.reward,
        )


def best_of_samples(samples: Sequence[Refinement], turn_ids: list[int]) -> Refinement:
    """Return the sample with the highest reward, of equal ones the nearest to the turn; of failures the first."""
    rewards = [(one.reward or 0.0, one) for one in samples if one.verdict.is_scored]
    highest = max((reward for reward, _ in rewards), default=0.0)
    best = [one for reward, one in rewards if not is_higher(highest, reward)] or list(samples[:1])
    if len(best) > 1:
        best.sort(key=lambda one: Levenshtein.distance(turn_ids, one.token_ids))
    return best[0]
