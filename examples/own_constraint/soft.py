"""A constraint of one's own: mode ``sft``, with pi_0's own distribution as the target at each token of a'.

    constraint.mode=soft:Soft    with PYTHONPATH=examples/own_constraint

Mode ``sft`` imitates the tokens of a'. This one imitates what pi_0 would write at each of its tokens: pi_0's TOP_K
likeliest tokens have their probabilities p, and a'_t has what is left of 1. The loss of a token is

    sum over k of p_k (log p_k - log pi_theta(k | s0, a'_<t)) - (1 - sum over k of p_k) log pi_theta(a'_t | s0, a'_<t)

The first term is verl's top-k forward KL (``verl/trainer/distillation``). Where pi_0's distribution is not known, as at
the end of a', p is 0 and the loss is that of a'_t, as in mode ``sft``.

In the order of a step: ``Distributions`` asks pi_0 (refine workers), ``columns`` writes what it said into the row
(the queue), ``ForwardKl`` is the loss (the actor), ``numbers`` and ``pair_metrics`` are the metric (the driver).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.asks import Blocks, Reference
from recipe.online_refiner.method.constraint import Companion, Mean
from recipe.online_refiner.method.imitation import ImitationPart, LogitsLoss
from recipe.online_refiner.method.modes import Sft
from recipe.online_refiner.method.pairs import Column, Pair, Refinement, Rollout, Turn
from refiner_worker.engines import ABSENT, Top
from refiner_worker.keys import BLOCK

TOP_K = 16
"""Number of pi_0's likeliest tokens that are known at a token; vLLM gives 20 at most."""
TOP_IDS, TOP_LOG_PROBS = "refine_top_ids", "refine_top_log_probs"
"""The columns: ids int32 and log-probs float32, (u, TOP_K) each; u is the length of a', 1 in a row that is not used."""
MASS = "soft_mass"
"""A row's number: the sum of p over the tokens that the refiner wrote."""
NUM_TOKENS, SHARE = "constraint/soft_tokens", "constraint/soft_share"
"""The metrics of this mode (``Soft.MEANING``)."""
LOGITS_ARE_THERE = {
    "model.use_fused_kernels": False,
    "actor.fsdp_config.pad_to_length": False,
    "actor.megatron.pad_to_length": False,
    "actor.megatron.dynamic_context_parallel": False,
    "actor.megatron.use_remove_padding": True,
}
"""Values of keys with which verl's top-k loss sees the logits."""


class ForwardKl(LogitsLoss):
    """The loss of a token of a', in the actor."""

    columns: ClassVar[tuple[str, ...]] = (TOP_IDS, TOP_LOG_PROBS)
    outputs: ClassVar[tuple[str, ...]] = ("distillation_losses", "teacher_mass")

    def of_logits(self, config: Any, data: Any, student_logits: Any, data_format: str) -> dict[str, Any]:
        """Return verl's top-k forward KL at each token, and the mass of pi_0's tokens."""
        import torch
        from verl.trainer.distillation.losses import compute_topk_loss  # here: the config is read without verl
        from verl.workers.config import DistillationLossConfig

        settings = DistillationLossConfig(
            loss_mode="forward_kl_topk", topk=TOP_K, log_prob_min_clamp=None, use_policy_gradient=False
        )
        rows = {
            "teacher_ids": [row.long() for row in of_sequences(data, TOP_IDS, 0)],
            "teacher_logprobs": of_sequences(data, TOP_LOG_PROBS, ABSENT),
        }
        nested = {name: torch.nested.as_nested_tensor(row, layout=torch.jagged) for name, row in rows.items()}
        return compute_topk_loss(
            config, SimpleNamespace(distillation_loss=settings), nested, student_logits, data_format
        )

    def of_tokens(self, log_probs: Any, output: Mapping[str, Any]) -> Any:
        """Return the KL over pi_0's tokens plus the remaining probability times the loss of a'_t."""
        return output["distillation_losses"] - (1 - output["teacher_mass"]) * log_probs


def of_sequences(data: Any, name: str, filling: float) -> list[Any]:
    """Return a column at the places of its tokens in the sequences of a micro-batch, (sequence length, TOP_K) a row.

    An engine's output at position i is about token i + 1, so each entry stands one position before its token.
    """
    found = []
    for ids, top in zip(data["input_ids"].unbind(), data[name].unbind(), strict=True):
        row = top.new_full((len(ids), TOP_K), filling)
        row[len(ids) - len(top) - 1 : -1] = top
        found.append(row)
    return found


class Distributions(Companion):
    """Asks pi_0 for its likeliest tokens at each token of a', by one prefill."""

    def __init__(self, constraint: "Soft", num_ids: int) -> None:
        """Take the constraint, and the number of ids that the tokenizer has."""
        super().__init__()
        self._constraint, self._num_ids = constraint, num_ids

    async def complete(
        self, reference: Reference, rollout: Rollout, rollouts: Sequence[Rollout], result: Refinement
    ) -> None:
        """Add pi_0's distribution to a refinement that acts on the policy and was written for this response."""
        if not self._constraint.is_used(result.verdict) or not result.prompt_ids:
            return
        written = result.token_ids[:-1]
        result.num_prompt_tokens += len(result.prompt_ids) + len(written)
        top = await reference.top_log_probs(result.prompt_ids, written, TOP_K, self._num_ids)
        if top is not None:
            result.own["top"] = top


@dataclass(kw_only=True, config=BLOCK)
class Soft(Sft):
    """Mode ``sft`` towards pi_0's own distribution at each token of a'."""

    asks_log_probs: ClassVar[bool] = True
    MEANING: ClassVar[Mapping[str, str | Mean]] = {
        NUM_TOKENS: "tokens of used refinements that the refiner wrote",
        SHARE: Mean(
            "share of the cross-entropy's target that is pi_0's distribution, mean over the tokens of used "
            "refinements; the rest is on the written token",
            NUM_TOKENS,
        ),
    }

    @cached_property
    def imitation(self) -> ImitationPart:
        """The cross-entropy of mode ``sft`` with another loss of a token."""
        return ImitationPart(
            normaliser=self.sft_normaliser, rescue_dead_groups=self.rescue_dead_groups, loss=ForwardKl()
        )

    def companion(self, tokenizer: Any, thoughts: Any, chat_settings: Any, longest: int) -> Companion:
        """Return what asks pi_0 for its distributions.

        Raises:
            ValueError: If the models think.
        """
        if thoughts is not None:
            raise ValueError(
                f"constraint.mode={self.mode} asks pi_0 what it would write behind the response's own thought, which "
                "it has not thought; set constraint.mode=sft, or refiner.thoughts=false if the model does not think"
            )
        return Distributions(self, len(tokenizer))

    def columns(self, turn: Turn) -> dict[str, Column]:
        """Return pi_0's likeliest tokens and their log-probs, ABSENT where they are not known."""
        num_tokens = len(turn.refinement.token_ids) if turn.is_used else 1
        ids, log_probs = padded_top(turn.refinement.own.get("top") if turn.is_used else None, num_tokens)
        return {TOP_IDS: ids, TOP_LOG_PROBS: log_probs}

    def numbers(self, turn: Turn) -> dict[str, float]:
        """Return how much of the target is pi_0's distribution, summed over the tokens that the refiner wrote."""
        top = turn.refinement.own.get("top")
        return {} if top is None else {MASS: float(np.exp(top[1][turn.refinement.num_kept_tokens :]).sum())}

    def pair_metrics(self, pairs: Sequence[Pair]) -> dict[str, float]:
        """Return pi_0's part in the targets, and the number of tokens that it is a mean over."""
        num_tokens = sum(pair.num_refined_tokens - pair.num_kept_tokens for pair in pairs if pair.is_used)
        if not num_tokens:
            return {}
        share = sum(pair.own.get(MASS, 0.0) for pair in pairs) / num_tokens
        return {NUM_TOKENS: num_tokens, SHARE: share}

    def refusal(self, config: DictConfig, blocks: Blocks) -> str | None:
        """Return one line if pi_0's distributions cannot be had, or verl's top-k loss would not see the logits."""
        said = f"constraint.mode={self.mode}"
        if self.imitate_solved:
            return f"{said}: nobody has refined a solved response; set constraint.imitate_solved=false"
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
