"""From a response to an attempt: what the refiner is told, and how much it may write."""

from dataclasses import dataclass

from recipe.online_refiner.method.eq6 import is_higher
from recipe.online_refiner.method.pairs import Rollout, Verdict, best_of
from recipe.online_refiner.refine.assemble import shape_of
from recipe.online_refiner.refine.attempt import Attempt, Shape
from recipe.online_refiner.refine.language import Language
from refiner_worker.config import RefinerConfig
from refiner_worker.pictures import pictures_of
from refiner_worker.prompts import RefinerPrompt
from refiner_worker.text.thoughts import Parts


@dataclass(slots=True, frozen=True, kw_only=True)
class Preparation:
    """The work before a request: the refiner's prompt for a response, and the limits of what is written.

    Example: of a context of 100 tokens the prompt takes 40. A refinement has at most 30 tokens, of which the response's
    own thought takes 10: so 20 are left for the answer, and 100 - 40 - 20 = 40 for the refiner's own thought.
    """

    config: RefinerConfig
    prompt: RefinerPrompt
    language: Language
    max_model_len: int
    """The context length of the refiner, in tokens."""
    max_response_tokens: int
    """The longest response of the policy in tokens, all turns of a session together."""

    async def attempt(self, rollout: Rollout, rollouts: list[Rollout]) -> Attempt | Verdict:
        """Return what is asked about a response of a group, or the verdict by which it is skipped."""
        on_thread = self.language.on_thread
        parts = await on_thread(self.language.split, rollout, rollout.turn_ids)
        shape = shape_of(parts, stop=self.prompt.stop, rewrites_thought=self.config.rewrites == "response")
        if parts.answer is None and not shape.writes_thought:
            return Verdict.NO_ANSWER
        told = await on_thread(self._told, rollout, rollouts)
        words = await on_thread(self._words, rollout, parts, shape, told)
        prompt = await on_thread(self.prompt.encode, words, pictures_of(rollout.prompt_ids))
        num_left = self._most_tokens(rollout) - len(shape.head)
        room = self.max_model_len - len(prompt)
        shortest_thought = (self.config.thought_length or 1) if self.prompt.thoughts else 0
        if num_left < 1 or room - (self.config.response_length - len(shape.head)) < shortest_thought:
            return Verdict.TOO_LONG
        longest_thought = min(self.config.longest_thought, room - num_left)
        return Attempt(
            rollout=rollout,
            parts=parts,
            shape=shape,
            told=told,
            words=words,
            prompt=prompt,
            num_left=num_left,
            longest_thought=longest_thought,
        )

    def _told(self, rollout: Rollout, rollouts: list[Rollout]) -> dict[str, str]:
        """Return the available texts of ``refiner.context``; a sibling must have had the same session so far."""
        wanted = self.prompt.limits
        told = {"feedback": rollout.feedback, "solution": rollout.solution}
        if "sibling" in wanted:
            best = best_of(rollout, rollouts)
            is_better = is_higher(best.reward, rollout.reward)
            told["sibling"] = self.language.answer_in(best, best.turn_ids) if is_better else ""
        return {name: text for name, text in told.items() if text and name in wanted}

    def _words(self, rollout: Rollout, parts: Parts, shape: Shape, told: dict[str, str]) -> str:
        """Return the words of the prompt."""
        thought = parts.thought.strip() if shape.writes_thought else None
        chat = self.language.chat_before(rollout)
        return self.prompt.content(chat, parts.answer or "", rollout.reward, told=told, thought=thought)

    def _most_tokens(self, rollout: Rollout) -> int:
        """Return the most tokens of a refinement: a session ends where verl would cut it."""
        longest = self.config.response_length
        return min(longest, self.max_response_tokens - rollout.start) if rollout.start else longest
