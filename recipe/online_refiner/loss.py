"""Mode ``sft``: verl's policy loss plus eta times the cross-entropy of accepted refinements.

    L = L_policy + eta * CE
    CE = -(1 / N) * sum over accepted pairs and all tokens t of w_t * log pi_theta(a'_t | s0, a'_<t)

N counts the tokens of accepted refinements in the whole mini-batch, over all data-parallel ranks; w_t = 1 unless
``constraint.token_weights`` says otherwise. The refinements are rows of the same forward pass (``refined_rows.py``).
"""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

Loss = Callable[..., tuple[Tensor, dict[str, Any]]]
"""verl's contract of a loss: (model_output=, data=, dp_group=) -> (loss, metrics)."""

TOKEN_WEIGHTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "uniform": lambda probs, edited, kept_weight: torch.ones_like(probs),
    # What the refiner wrote itself against what it repeated from the response.
    "edited": lambda probs, edited, kept_weight: torch.where(edited.bool(), 1.0, kept_weight).to(probs.dtype),
    # CHORD-phi (W. Zhang et al., arXiv 2508.11408): learn from tokens that the policy neither rules out nor is sure of.
    "chord": lambda probs, edited, kept_weight: probs * (1 - probs),
    # DFT (Y. Wu et al., arXiv 2508.05629): the probability takes away the 1/p that the SFT gradient hides.
    "dft": lambda probs, edited, kept_weight: probs,
}
"""Weights w_t from (probs, edited, kept_weight): (B, T) probabilities of the tokens under the current policy, without
gradient; (B, T) 1 where the refinement differs from the response; ``constraint.kept_weight``."""


def sft_cross_entropy(*, log_probs: Tensor, mask: Tensor, weights: Tensor, num_tokens: int) -> Tensor:
    """Return CE of this module's formula for one micro-batch; summed over all micro-batches and ranks it is CE.

    Args:
        log_probs: (B, T) with gradient, in nats; anything where mask is 0.
        mask: (B, T) 1 on tokens of accepted refinements.
        weights: (B, T) w_t, no gradient.
        num_tokens: N, > 0.

    Returns:
        A scalar >= 0; exactly 0 for a micro-batch without refinements.
    """
    return -torch.where(mask.bool(), weights * log_probs, torch.zeros_like(log_probs)).sum() / num_tokens


def refined_loss(
    verl_loss: Loss, *, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
) -> tuple[Tensor, dict[str, Any]]:
    """Return verl's loss, plus eta * CE if the micro-batch belongs to a mini-batch with refined rows.

    Args:
        verl_loss: The loss of the run.
        model_output: The engine's, with ``log_probs``.
        data: A micro-batch; with jagged ``sft_mask`` and ``sft_edited`` (B, response) and the settings ``sft_eta``,
            ``sft_token_weights``, ``sft_kept_weight`` and ``sft_num_tokens`` if rows ride along.
        dp_group: Data-parallel process group.

    Returns:
        Loss and metrics. The engine averages gradients over ranks, therefore the factor ``dp_size``.
    """
    loss, metrics = verl_loss(model_output=model_output, data=data, dp_group=dp_group)
    if "sft_mask" not in data:
        return loss, metrics
    log_probs = no_padding_2_padding(model_output["log_probs"], data)
    padded = data.select("sft_mask", "sft_edited").to_padded_tensor(0)
    weights = TOKEN_WEIGHTS[data["sft_token_weights"]](
        log_probs.detach().exp(), padded["sft_edited"], data["sft_kept_weight"]
    )
    value = data["dp_size"] * sft_cross_entropy(
        log_probs=log_probs, mask=padded["sft_mask"], weights=weights, num_tokens=data["sft_num_tokens"]
    )
    metrics["sft_cross_entropy"] = Metric(value=value.detach(), aggregation=AggregationType.SUM)
    return loss + data["sft_eta"] * value, metrics
