"""The dynamic constraint (Eq. 6 of the paper) as pure tensor functions.

Notation: B rollouts, T response tokens (right-padded), U refinement tokens (right-padded); a is the response and a' its
refinement. All tensors of one call live on one device.
"""

import math

import torch
from torch import Tensor


def accepts(refined_reward: float, reward: float, margin: float) -> bool:
    """Return whether r(s0, a') > r(s0, a) + margin: the condition of Eq. 6. Equal rewards are not accepted."""
    return refined_reward > reward + margin


def charge(*, refine_log_probs: Tensor, counterparts: Tensor, response_mask: Tensor) -> Tensor:
    """Return log pi_theta(a'_c(t) | s0, a'_<c(t)) for every charged token t of a, and 0 elsewhere.

    Eq. 6 of the paper is c(t) = t for t = 1..min(len a, len a') on pairs with r(s0, a') > r(s0, a). Minus the sum over
    t is D of Eq. 6, in nats.

    Args:
        refine_log_probs: (B, U) log-probs of a' under the policy before this step's updates, no gradient, in nats.
        counterparts: (B, T) int64, 0-based c(t) (``alignment.py``), -1 where nothing is charged: all of a row that the
            reward gate rejected, what is beyond the shorter of a and a', what the refiner was made to keep, padding.
        response_mask: (B, T) 1 on tokens of a that the policy wrote, 0 on tool output and padding.

    Returns:
        (B, T), <= 0.
    """
    charged = (counterparts >= 0) & response_mask.bool()
    found = refine_log_probs.gather(1, counterparts.clamp(min=0))
    return torch.where(charged, found, torch.zeros_like(found))


def since(start: Tensor, response_mask: Tensor) -> Tensor:
    """Return the mask of the tokens that the policy wrote from a position on, (B, T).

    Args:
        start: (B,) where the refined turn begins.
        response_mask: (B, T) as in :func:`charge`.
    """
    return response_mask * (torch.arange(response_mask.shape[1], device=start.device) >= start[:, None])


def kl_to_reference(*, log_probs: Tensor, ref_log_probs: Tensor, response_mask: Tensor) -> float:
    """Return the k3 estimate of KL(pi_theta || pi_0) on the responses, in nats per token.

    k3 = exp(d) - 1 - d with d = log pi_0 - log pi_theta: unbiased for samples of pi_theta, never negative
    (J. Schulman, "Approximating KL divergence", 2020).

    Args:
        log_probs: (B, T) under the policy.
        ref_log_probs: (B, T) under the reference model.
        response_mask: (B, T) the tokens to count.

    Returns:
        The mean; NaN if no token is counted, as nothing is known then.
    """
    mask = response_mask.bool()
    if not mask.any():
        return math.nan
    difference = (ref_log_probs - log_probs)[mask].double()
    return (torch.expm1(difference) - difference).mean().item()
