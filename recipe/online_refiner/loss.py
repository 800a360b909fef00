"""Modes ``sft`` and ``lagrangian``: verl's policy loss plus eta times the cross-entropy of accepted refinements.

    L = L_policy + eta * CE
    CE = -(1 / N) * sum over accepted pairs and all tokens t of w_t * log pi_theta(a'_t | s0, a'_<t)

With ``constraint.sft_normaliser=accepted`` N counts the tokens of accepted refinements in the whole mini-batch, over
all data-parallel ranks; with ``batch`` it is what verl divides the policy's loss by (``loss_agg_mode``: token-mean
divides by the tokens of all responses). w_t is ``constraint.token_weights``. The refinements are rows of the same
forward pass (``refined_rows.py``).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tensordict import TensorDict
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

Loss = tuple[Tensor, dict[str, Any]]
"""What verl's losses return: the loss and its metrics."""

SHAPE = 0.1
"""gamma of ``shaped``, LUFFY's choice."""

TOKEN_WEIGHTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "uniform": lambda probs, known: known,
    # What the refiner wrote itself against what it repeated from the response (``constraint.kept_weight``).
    "edited": lambda probs, known: known,
    # As often as a token of the response is charged for it: the gradient of D of Eq. 6.
    "charged": lambda probs, known: known,
    # CHORD-phi (W. Zhang et al., arXiv 2508.11408): learn from tokens that the policy neither rules out nor is sure of.
    "chord": lambda probs, known: known * (probs * (1 - probs)),
    # DFT (Y. Wu et al., arXiv 2508.05629): the probability takes away the 1/p that the SFT gradient hides.
    "dft": lambda probs, known: known * probs,
    # LUFFY (J. Yan et al., arXiv 2504.14945): -f(p) with f(p) = p / (p + gamma) in place of -log p has this gradient.
    "shaped": lambda probs, known: known * (SHAPE * probs / (probs + SHAPE) ** 2),
}
"""Weights w_t from (B, T) probabilities of the tokens under the current policy, without gradient, and (B, T) what was
known of them before the update (``alignment.py``)."""


def refined_loss(
    verl_loss: partial[Loss], *, model_output: dict[str, Any], data: TensorDict, dp_group: Any = None
) -> Loss:
    """Return verl's loss, plus eta * CE if the micro-batch belongs to a mini-batch with refined rows.

    Args:
        verl_loss: The loss of the run, ``ppo_loss`` with the actor's config.
        model_output: The engine's, with ``log_probs``.
        data: A micro-batch; with jagged ``sft_mask`` and ``sft_weights`` (B, response) and the settings ``sft_eta``,
            ``sft_token_weights``, ``sft_normaliser`` and ``sft_num_tokens`` if rows ride along.
        dp_group: Data-parallel process group.

    Returns:
        Loss and metrics. Summed over all micro-batches and ranks CE is this module's; the engine averages gradients
        over ranks, therefore the factor ``dp_size`` in it.
    """
    loss, metrics = verl_loss(model_output=model_output, data=data, dp_group=dp_group)
    if "sft_mask" not in data:
        return loss, metrics
    log_probs = no_padding_2_padding(model_output["log_probs"], data)
    padded = data.select("sft_mask", "sft_weights").to_padded_tensor(0)
    weigh = TOKEN_WEIGHTS[data["sft_token_weights"]]
    weights = weigh(log_probs.detach().exp(), padded["sft_weights"].to(log_probs.dtype))
    config = verl_loss.keywords["config"]
    mode, sizes = config.loss_agg_mode, config.global_batch_info  # as verl's loss has just set them
    if data["sft_normaliser"] == "accepted":
        mode, sizes = "token-mean", {"dp_size": data["dp_size"], "batch_num_tokens": data["sft_num_tokens"]}
    value = agg_loss(-weights * log_probs, padded["sft_mask"], mode, **sizes)
    metrics["sft_cross_entropy"] = Metric(value=value.detach(), aggregation=AggregationType.SUM)
    return loss + data["sft_eta"] * value, metrics
