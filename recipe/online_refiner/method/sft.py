"""Mode ``sft``: the cross-entropy of accepted refinements in the actor's loss. And what modes of imitation share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.constraint import Column, Companion, Mean, Turn, Weighted
from recipe.online_refiner.method.pairs import Pair, Refinement, Rollout
from recipe.online_refiner.method.penalty import Rewritten
from refiner_worker.engines import ABSENT, Top
from refiner_worker.keys import BLOCK, what_lacks

if TYPE_CHECKING:  # they import torch
    from recipe.online_refiner.config.fields import RefinementConfig
    from recipe.online_refiner.method.asks import Reference

TOP_K = 16
"""Number of pi_0's likeliest tokens that are known at a token (``constraint.target=soft``); vLLM gives 20 at most."""
SEQUENCE_LOSSES = ("sapo", "geo_mean")
"""Policy losses of verl that average each response first, whatever ``loss_agg_mode`` says."""
ROW_LOSSES = ("geo_mean", "bypass_mode")
"""Policy losses of verl that count rows without tokens of the policy, or refuse a micro-batch of such rows."""
NO_GROUP_ESTIMATORS = ("gae", "reinforce_plus_plus", "gdpo")
"""Whose baseline is not the group's reward: a critic's, that of the whole batch, of several."""
LOGITS_ARE_THERE = {
    "model.use_fused_kernels": False,
    "actor.fsdp_config.pad_to_length": False,
    "actor.megatron.pad_to_length": False,
    "actor.megatron.dynamic_context_parallel": False,
    "actor.megatron.use_remove_padding": True,
}
"""Values of keys with which verl's top-k loss works (``verl/trainer/distillation``)."""


@dataclass(kw_only=True, config=BLOCK)
class Imitating(Weighted):
    """A constraint with the cross-entropy of refinements in the actor's loss (``verl_glue/loss.py``)."""

    sft_normaliser: Literal["batch", "accepted"] = "batch"
    """Divisor of the cross-entropy. ``batch``: the policy loss's, so it fades as fewer refinements are accepted.
    ``accepted``: the tokens of accepted refinements."""
    rescue_dead_groups: bool = False
    """Keep groups with equal rewards if a refinement improves on them, also when DAPO would filter them out."""

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return ``refine_weights`` as well: of the tokens of a' in the cross-entropy."""
        length = max(1, len(turn.refinement.token_ids))  # as refine_ids has it in a row without a refinement
        weights = self.weights(turn) if turn.is_used else [0.0] * length
        return {**super().columns(turn), "refine_weights": weights}

    def weights(self, turn: Turn) -> list[float]:
        """Return the weight of each token of a': 0 for those that the refiner's answer was begun with, else 1."""
        kept = turn.refinement.num_kept_tokens
        return [0.0] * kept + [1.0] * (len(turn.refinement.token_ids) - kept)

    def loss_settings(self, eta: float) -> dict[str, Any]:
        """Return weight and divisor; with eta = 0 the loss is verl's own."""
        return {"refine_eta": eta, "refine_normaliser": self.sft_normaliser} if eta > 0 else {}

    @property
    def rescues(self) -> bool:
        """Whether dead groups are kept; with eta = 0 nothing keeps what verl would not."""
        return self.rescue_dead_groups and self.first_eta > 0

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if the policy's loss would not be verl's own, or a rescued group would learn nothing."""
        return self._loss_refusal(config) or self._rescue_refusal(config, blocks) or super().refusal(config, blocks)

    def _loss_refusal(self, config: DictConfig) -> str | None:
        actor = config.actor_rollout_ref.actor
        said = f"constraint.mode={self.mode} with actor_rollout_ref.actor"
        if actor.policy_loss.loss_mode in ROW_LOSSES:
            return (
                f"{said}.policy_loss.loss_mode={actor.policy_loss.loss_mode}: refinements would count as rows of the "
                "policy's loss; set it to vanilla, or constraint.mode=penalty"
            )
        by_row = actor.policy_loss.loss_mode in SEQUENCE_LOSSES and actor.loss_agg_mode != "seq-mean-token-mean"
        if by_row and self.sft_normaliser == "batch":
            return (
                f"{said}.policy_loss.loss_mode={actor.policy_loss.loss_mode}: it averages each response, while the "
                f"cross-entropy would be divided by loss_agg_mode={actor.loss_agg_mode}; set "
                "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
            )
        if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
            return (
                f"{said}.loss_agg_mode=seq-mean-token-sum-norm: the longest row, which may be a refinement, would "
                "scale the policy loss; set actor_rollout_ref.actor.loss_scale_factor"
            )
        return None

    def _rescue_refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        if not self.rescue_dead_groups:
            return None
        algorithm = config.algorithm
        filters = algorithm.get("filter_groups")
        is_filtered = bool(filters and filters.enable)
        wanted = {
            "actor_rollout_ref.rollout.n above 1": config.actor_rollout_ref.rollout.n > 1,
            "algorithm.adv_estimator=grpo or rloo: another baseline is not the group's reward": algorithm.adv_estimator
            not in NO_GROUP_ESTIMATORS,
            "algorithm.filter_groups.metric=reward": not is_filtered or filters.metric == "reward",
            "algorithm.use_kl_in_reward=false: that KL would be silenced too": not algorithm.use_kl_in_reward,
            "refiner.placement=dedicated, shared or external: DAPO's filter looks at refined groups": blocks.streams
            or not is_filtered,
        }
        return what_lacks("constraint.rescue_dead_groups=true", wanted)


def num_learned_tokens(pairs: Iterable[Pair]) -> int:
    """Return the tokens of used refinements that the refiner has written itself."""
    return sum(pair.num_refined_tokens - pair.num_kept_tokens for pair in pairs if pair.is_used)


@dataclass(kw_only=True, config=BLOCK)
class Imitation(Imitating, Rewritten):
    """An imitation of a' itself, token by token or by pi_0's own distribution at each of its tokens."""

    MEANING: ClassVar[Mapping[str, str | Mean]] = {
        "constraint/soft_share": Mean(
            "constraint.target=soft: share of the cross-entropy's target that is pi_0's distribution, mean over the "
            "tokens of used refinements; the rest is on the written token",
            lambda state: num_learned_tokens(state.pairs.values()),
        )
    }

    target: Literal["rewrite", "soft"] = "rewrite"
    """``rewrite``: the tokens of a'. ``soft``: pi_0's own distribution at each token of a'."""

    @property
    def asks_log_probs(self) -> bool:
        """Whether pi_0 is asked for log-probs of given tokens."""
        return self.target == "soft"

    def companion(self, tokenizer: Any, chat_settings: Mapping[str, Any] | None, longest: int) -> Companion:
        """Return what asks pi_0 for its distribution, if that is the target."""
        return Distributions(self, len(tokenizer)) if self.target == "soft" else Companion()

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return with target ``soft`` also ``refine_top_ids`` (u, TOP_K) int32, ``refine_top_log_probs`` float32.

        u is the length of a', 1 in a row that is not used. Where pi_0's distribution is not known, as at the end of a',
        log-probs are ABSENT.
        """
        columns = super().columns(turn)
        if self.target == "soft":
            top = (
                padded_top(turn.refinement.top, len(turn.refinement.token_ids)) if turn.is_used else padded_top(None, 1)
            )
            columns["refine_top_ids"], columns["refine_top_log_probs"] = top
        return columns

    def numbers(self, turn: Turn) -> dict[str, float]:
        """Return how much of the target is pi_0's distribution, summed over the tokens that the refiner wrote."""
        top = turn.refinement.top
        if self.target != "soft" or top is None:
            return {}
        return {"soft_mass": float(np.exp(top[1][turn.refinement.num_kept_tokens :]).sum())}

    def pair_metrics(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Return pi_0's part in the targets, over the tokens of used refinements that it has written itself."""
        num_tokens = num_learned_tokens(pairs)
        if self.target != "soft" or not num_tokens:
            return {}
        return {"constraint/soft_share": sum(pair.own.get("soft_mass", 0.0) for pair in pairs) / num_tokens}

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if pi_0's distributions cannot be had, or verl's top-k loss would not see the logits."""
        said = "constraint.target=soft"
        if self.target != "soft":
            return super().refusal(config, blocks)
        for key, wanted in LOGITS_ARE_THERE.items():
            if OmegaConf.select(config.actor_rollout_ref, key, default=wanted) != wanted:
                return f"{said}: verl's top-k loss needs the logits; set actor_rollout_ref.{key}={str(wanted).lower()}"
        if not blocks.refiner.has_replicas:
            return f"{said}: only replicas give log-probs; set refiner.placement to colocated or dedicated"
        return super().refusal(config, blocks)


def padded_top(top: Top | None, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pi_0's likeliest tokens and their log-probs, each (u, TOP_K); ABSENT where they are not known."""
    ids = np.zeros((num_tokens, TOP_K), np.int32)
    log_probs = np.full((num_tokens, TOP_K), ABSENT, np.float32)
    if top is not None:
        num_known, k = top[0].shape
        ids[:num_known, :k], log_probs[:num_known, :k] = top
    return ids, log_probs


class Distributions(Companion):
    """Asks pi_0 for its likeliest tokens at each token of a', by one prefill."""

    def __init__(self, constraint: Imitation, num_ids: int) -> None:
        super().__init__()
        self._constraint, self._num_ids = constraint, num_ids

    async def complete(
        self, reference: "Reference", rollout: Rollout, rollouts: Sequence[Rollout], result: Refinement
    ) -> None:
        """Add pi_0's distribution to a refinement that acts on the policy and was written for this response."""
        if not self._constraint.is_used(result.verdict) or not result.prompt_ids:
            return
        written = result.token_ids[:-1]
        result.num_prompt_tokens += len(result.prompt_ids) + len(written)
        result.top = await reference.top_log_probs(result.prompt_ids, written, TOP_K, self._num_ids)


@dataclass(kw_only=True, config=BLOCK)
class Sft(Imitation):
    """The cross-entropy of accepted refinements in the loss: the policy is pulled to them."""

    DEFAULT_ETA: ClassVar[float] = 0.03  # docs/results.md
    TRIED: ClassVar[tuple[float, float]] = (0.01, 1.0)

    mode: Literal["sft"]
    imitate_solved: bool = False
    """A control: a response that reaches ``refiner.skip_reward_at_least`` is its own refinement."""

    def companion(self, tokenizer: Any, chat_settings: Mapping[str, Any] | None, longest: int) -> Companion:
        """Return what also imitates solved responses, if that is asked for."""
        if self.imitate_solved:
            return Companion(imitates_solved=True)
        return super().companion(tokenizer, chat_settings, longest)

    def refusal(self, config: DictConfig, blocks: "RefinementConfig") -> str | None:
        """Return one line if nothing tells which responses are solved."""
        if self.imitate_solved and (self.target == "soft" or blocks.refiner.skip_reward_at_least is None):
            return "constraint.imitate_solved=true: set constraint.target=rewrite and refiner.skip_reward_at_least"
        return super().refusal(config, blocks)
