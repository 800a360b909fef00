"""Target ``in_place``: the policy's own tokens are charged, by pi_0 that has read the better answer."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.asks import Blocks, Reference
from recipe.online_refiner.method.constraint import Companion, Mean, Weighted, lets_through
from recipe.online_refiner.method.eq6 import is_higher
from recipe.online_refiner.method.imitation import ImitationPart, Normaliser, RescueDeadGroups
from recipe.online_refiner.method.pairs import Column, Pair, Refinement, Rollout, Turn, Verdict, best_of
from recipe.online_refiner.method.penalty import PenaltyPart
from refiner_worker.config import TEMPLATES, template_path
from refiner_worker.keys import BLOCK
from refiner_worker.prompts import InPlacePrompt
from refiner_worker.text.thoughts import Thoughts

if TYPE_CHECKING:  # the config is read without torch
    from torch import Tensor


NUM_SCORED, NUM_UNSCORED = "constraint/in_place_responses", "constraint/in_place_unscored"
NUM_TOKENS, CHARGE = "constraint/in_place_tokens", "constraint/in_place_charge"
LARGEST, AGREEMENT = "constraint/in_place_largest", "constraint/in_place_agreement"
"""The metrics of this mode (``InPlace.MEANING``)."""


class InPlacePenalty(PenaltyPart):
    """A charge of log pi_0 - log pi_theta for each token, where pi_0 has read the better answer."""

    reads: ClassVar[tuple[str, ...]] = ("refine_in_place", "old_log_probs")

    def is_charged(self, pair: Pair) -> bool:
        """Return whether pi_0 scores the turn."""
        return bool(pair.own.get("is_scored"))

    def charge(self, data: "Mapping[str, Tensor]", turn_mask: "Tensor") -> "Tensor":
        """Return log pi_0(a_t | c, a_<t) - log pi_theta(a_t | s0, a_<t) for every token of the turns, (B, T), else 0.

        pi_0 has read the better answer in its prompt c. Minus the sum over t is an estimate of the KL from the policy
        to it. With the bare prompt as c, and one turn, the charge is what verl charges for KL (its k1:
        ``verl.trainer.ppo.core_algos.kl_penalty``).
        """
        return (data["refine_in_place"] - data["old_log_probs"]) * turn_mask

    def metrics(self, charged: "Tensor", data: "Mapping[str, Tensor]", turn_mask: "Tensor") -> dict[str, float]:
        """Summarise how pi_0 has scored the turns of some responses."""
        mask, size = turn_mask.bool(), charged.abs()
        reference, own = (data[name][mask].exp() > 0.5 for name in self.reads)
        num_tokens = int(mask.sum())
        return {
            NUM_TOKENS: num_tokens,
            CHARGE: float(charged.sum()) / num_tokens,
            LARGEST: float((size.amax(-1) / size.sum(-1).clamp(min=1e-8)).mean()),
            AGREEMENT: float((reference == own).float().mean()),
        }


@dataclass(kw_only=True, config=BLOCK)
class InPlace(Weighted):
    """Each token of a response is charged log pi_0 - log pi_theta, where pi_0 has read the better answer."""

    DEFAULT_ETA: ClassVar[float] = 0.03  # the lab's first task took 0.3, the largest tried
    TRIED: ClassVar[tuple[float, float] | None] = (0.01, 0.3)
    asks_log_probs: ClassVar[bool] = True
    MEANING: ClassVar[Mapping[str, str | Mean]] = {
        NUM_SCORED: "responses that the reference model scored given the better answer",
        NUM_UNSCORED: "responses that the reference model did not score, because no replica answered, or its "
        "prompt would have been too long or had nothing to show",
        NUM_TOKENS: "tokens of the scored responses",
        CHARGE: Mean(
            "mean charge of a scored token in nats: log pi_0 given the better answer minus log pi_theta; below 0 "
            "where pi_0 finds the token less likely than the policy does",
            NUM_TOKENS,
        ),
        LARGEST: Mean(
            "share of its largest token in the charge of a response, mean over responses; near 1, one token decides",
            NUM_SCORED,
        ),
        AGREEMENT: Mean(
            "share of these tokens on which pi_0, given the better answer, and the policy agree: both give the token a "
            "probability above one half, or neither does",
            NUM_TOKENS,
        ),
    }

    reward_gate: bool | Literal["failed"] = True
    """Which responses are constrained. ``true``: those with a better refinement. ``false``: all with a rewarded
    refinement, or all if nothing is refined. ``failed``: those below the maximal reward in a group with a solved
    sibling, which stands for a'."""
    target: Literal["in_place"]
    """``in_place``: pi_0 scores the tokens that the policy wrote. Without this key, a' is constrained."""
    in_place_template: str = "answer"
    """What pi_0 reads before it scores the response: ``answer`` (question and better answer), or your Jinja2 file."""

    @cached_property
    def penalty(self) -> PenaltyPart:
        """The charge of each token by pi_0."""
        return InPlacePenalty()

    # ---- the refine stage

    def is_used(self, verdict: Verdict) -> bool:
        """Return whether a refinement acts on the policy: whether the reward gate lets it through."""
        return lets_through(verdict, reward_gate=bool(self.reward_gate))

    def companion(
        self, tokenizer: Any, thoughts: Thoughts | None, chat_settings: Mapping[str, Any] | None, longest: int
    ) -> Companion:
        """Return the companion that lets pi_0 score responses.

        Raises:
            ValueError: If the template does not exist, is broken, or shows nothing that is available.
        """
        prompt = InPlacePrompt(self.template_path(), tokenizer, chat_settings, longest)
        if self.reward_gate == "failed" and not prompt.uses & {"sibling", "solution"}:
            said = "constraint.reward_gate=failed"
            raise ValueError(f"{said}: constraint.in_place_template must show sibling or solution")
        return Teacher(self, prompt)

    def template_path(self) -> Path:
        """Return the file of the template; ValueError if there is none."""
        return template_path("constraint.in_place_template", self.in_place_template, TEMPLATES / "in_place")

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return ``refine_in_place``, log pi_0 of the response's tokens, and ``refine_in_place_prompt``, c.

        The first is 0 where it is not known. The second is for an actor that computes the first; else one token.
        """
        scores = [0.0] * turn.response_length
        given = turn.refinement.in_place or []
        scores[turn.start : turn.start + len(given)] = given
        return {"refine_in_place": scores, "refine_in_place_prompt": turn.refinement.in_place_prompt or [0]}

    def numbers(self, turn: Turn) -> dict[str, float]:
        """Return whether pi_0 scores the turn, and whether it should have and could not."""
        refinement = turn.refinement
        is_scored = bool(refinement.in_place or refinement.in_place_prompt)
        return {"is_scored": is_scored, "is_unscored": refinement.in_place == [] and not is_scored}

    def pair_metrics(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Count the responses that pi_0 has scored, and the responses that it should have scored and has not."""
        counts = {NUM_SCORED: "is_scored", NUM_UNSCORED: "is_unscored"}
        return {metric: sum(pair.own.get(name, 0.0) for pair in pairs) for metric, name in counts.items()}

    # ---- before the run

    def refusal(self, config: DictConfig, blocks: Blocks) -> str | None:
        """Return one line if nobody would be constrained, or no server could give log-probs."""
        said, rollout, refiner = "constraint.target=in_place", config.actor_rollout_ref.rollout, blocks.refiner
        if self.is_adaptive:
            return f"{said}: constraint.delta bounds Eq. 6; set constraint.eta_schedule=constant"
        siblings_teach = refiner.skip_reward_at_least is not None and rollout.n > 1
        limits = (refiner.max_refinements_per_group, refiner.budget)
        refines = refiner.only_unsolved or limits != (None, None)
        if self.reward_gate == "failed" and (refines or not siblings_teach):
            return (
                f"{said}: with constraint.reward_gate=failed nothing is refined, and a solved sibling has the maximal "
                "reward; set refiner.skip_reward_at_least and actor_rollout_ref.rollout.n above 1, and leave out "
                "refiner.max_refinements_per_group, refiner.only_unsolved and refiner.budget"
            )
        if refiner.placement == "external":
            return f"{said}: no server gives log-probs by URL; set constraint.target=rewrite"
        self.template_path()
        return None


@dataclass(kw_only=True, config=BLOCK)
class InPlaceSft(InPlace):
    """The penalty in place, with the cross-entropy of accepted refinements in the loss as well."""

    sft_normaliser: Normaliser = "batch"
    rescue_dead_groups: RescueDeadGroups = False

    @cached_property
    def imitation(self) -> ImitationPart:
        """The cross-entropy of each token of a' that the refiner wrote."""
        return ImitationPart(normaliser=self.sft_normaliser, rescue_dead_groups=self.rescue_dead_groups)


class Teacher(Companion):
    """A companion that lets pi_0 score turns after it has read the better answer."""

    def __init__(self, constraint: InPlace, prompt: InPlacePrompt) -> None:
        """Keep the constraint, and the renderer of pi_0's prompt c."""
        super().__init__()
        self._gate, self._prompt = constraint.reward_gate, prompt
        is_shown = self._gate is False and "refined" in prompt.uses
        self.needs_refinement = constraint.imitation is not None or self._gate is True or is_shown

    def scored_tokens(self, prompt: int, response: int) -> int:
        """Return the tokens of the longest prompt c with a response after it."""
        return self._prompt.max_tokens(prompt) + response

    async def complete(
        self, reference: Reference, rollout: Rollout, rollouts: Sequence[Rollout], result: Refinement
    ) -> None:
        """Add log pi_0 of the turn, or the prompt before it where the actor scores, if the response is constrained."""
        sibling = best_of(rollout, rollouts)
        is_solved, has_solved = map(reference.is_maximal, (rollout.reward, sibling.reward))
        if not self._is_open(result, is_solved=is_solved, has_solved_sibling=has_solved):
            return
        result.in_place = []
        prompt_ids = await reference.on_thread(self._encode, reference, rollout, sibling, result)
        if prompt_ids is None or len(prompt_ids) + len(rollout.turn_ids) >= reference.max_model_len:
            return
        if reference.scores_by_actor:
            result.in_place_prompt = prompt_ids
            return
        result.num_prompt_tokens += len(prompt_ids) + len(rollout.turn_ids)
        result.in_place = await reference.log_probs(prompt_ids, rollout.turn_ids) or []

    def _is_open(self, result: Refinement, *, is_solved: bool, has_solved_sibling: bool) -> bool:
        """Return whether a response is constrained, from its refinement's verdict."""
        if self._gate == "failed":
            return has_solved_sibling and not is_solved
        if self._gate:
            return result.verdict is Verdict.ACCEPTED
        return result.verdict.is_scored or not self.needs_refinement

    def _encode(self, reference: Reference, rollout: Rollout, sibling: Rollout, result: Refinement) -> list[int] | None:
        """Return c as token ids; None if the template would have nothing to show."""
        # Without the gate a' may be the response itself, which pi_0 must not read: it would copy it.
        is_shown = result.verdict.is_scored and not result.is_repeated
        is_better = is_higher(sibling.reward, rollout.reward)
        shown = {
            "refined": reference.answer_in(rollout, result.token_ids) if is_shown else "",
            "sibling": reference.answer_in(sibling, sibling.turn_ids) if is_better else "",
            "solution": rollout.solution,
        }
        return self._prompt.encode(reference.chat_before(rollout), shown)
