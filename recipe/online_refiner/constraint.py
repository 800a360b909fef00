"""The dynamic constraint (Eq. 6 of the paper) as pure tensor functions.

Notation: B rollouts, T response tokens (right-padded), U refinement tokens (right-padded); a is the response and a' its
refinement. All tensors of one call live on one device.
"""

import torch
from torch import Tensor


def accepts(refined_reward: float, reward: float, margin: float) -> bool:
    """Return whether r(s0, a') > r(s0, a) + margin: the condition of Eq. 6. Equal rewards are not accepted."""
    return refined_reward > reward + margin


def token_penalty(
    *, refine_log_probs: Tensor, refine_mask: Tensor, accepted: Tensor, response_mask: Tensor, eta: float
) -> Tensor:
    """Return the token-level penalty on the reward, Eq. 6 weighted by eta.

    p_t = eta * log pi_theta(a'_t | s0, a'_<t) for t = 1..min(len a, len a') on accepted pairs, and 0 elsewhere. Its sum
    over t is -eta * D of Eq. 6. It is a penalty: never positive. Position t of a' is charged to position t of a.

    Args:
        refine_log_probs: (B, U) log-probs of a' under the policy before this step's updates, no gradient, in nats.
        refine_mask: (B, U) 1 on tokens of a', 0 on padding.
        accepted: (B,) bool, the pairs that the reward gate let through.
        response_mask: (B, T) 1 on tokens of a that the policy wrote, 0 on tool output and padding.
        eta: weight of the constraint, >= 0.

    Returns:
        (B, T) penalties, <= 0; all zero if eta is 0 or nothing was accepted.
    """
    penalty = torch.zeros(response_mask.shape, dtype=refine_log_probs.dtype, device=refine_log_probs.device)
    if eta == 0:
        return penalty
    length = min(response_mask.shape[1], refine_mask.shape[1])
    charged = accepted.bool()[:, None] & refine_mask[:, :length].bool() & response_mask[:, :length].bool()
    penalty[:, :length] = torch.where(charged, eta * refine_log_probs[:, :length], penalty[:, :length])
    return penalty


def penalised_advantages(*, advantages: Tensor, penalty: Tensor, response_mask: Tensor) -> Tensor:
    """Add the penalty's return-to-go (gamma = 1) to the advantages of a critic-free estimator.

    A_t = A_group + sum over k >= t of p_k. The outcome reward was normalised within its group before, so a penalty
    never changes the advantages of its siblings. The paper's code base does the same for DAPO.

    Args:
        advantages: (B, T) the estimator's own.
        penalty: (B, T) from :func:`token_penalty`.
        response_mask: (B, T) as there; masked positions keep the estimator's value.

    Returns:
        (B, T) a new tensor.
    """
    return advantages + penalty.flip(-1).cumsum(-1).flip(-1) * response_mask


def cross_entropy(*, refine_log_probs: Tensor, refine_mask: Tensor, rows: Tensor) -> float:
    """Return the mean of -log pi_theta(a'_t) over all tokens of the chosen rows, in nats per token.

    Args:
        refine_log_probs: (B, U), as in :func:`token_penalty`.
        refine_mask: (B, U).
        rows: (B,) bool, the refinements to count.

    Returns:
        The mean; 0.0 if the rows hold no token.
    """
    mask = refine_mask.bool() & rows.bool()[:, None]
    return -refine_log_probs[mask].mean().item() if mask.any() else 0.0


def kl_to_reference(*, log_probs: Tensor, ref_log_probs: Tensor, response_mask: Tensor) -> float:
    """Return the k3 estimate of KL(pi_theta || pi_0) on the responses, in nats per token.

    k3 = exp(d) - 1 - d with d = log pi_0 - log pi_theta: unbiased for samples of pi_theta, never negative
    (J. Schulman, "Approximating KL divergence", 2020).

    Args:
        log_probs: (B, T) under the policy.
        ref_log_probs: (B, T) under the reference model.
        response_mask: (B, T) the tokens to count.

    Returns:
        The mean; 0.0 if no token is counted.
    """
    mask = response_mask.bool()
    if not mask.any():
        return 0.0
    difference = (ref_log_probs - log_probs)[mask].double()
    return (torch.expm1(difference) - difference).mean().item()
