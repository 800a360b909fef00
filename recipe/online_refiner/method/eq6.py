"""Eq. 6 of the paper, from the gate to the advantages. Pure functions; read from top to bottom.

    D = sum over t of -log pi_theta(a'_c(t) | s0, a'_<c(t))   for pairs with r(s0, a') > r(s0, a)

1. *Gate*: which pairs count. 2. *Alignment*: which token of a' each token of a is charged for, c(t). 3. *Charge*: that
token's log-prob. 4. *Credit*: which tokens of a answer for the charge. ``penalty.py`` says where the penalty acts;
its weight eta is in ``eta.py``, and the cross-entropy of a' in ``imitation.py``.

Notation: B rollouts, T response tokens (right-padded), U refinement tokens (right-padded); a is the response (its last
turn) and a' its refinement. All tensors of one call live on one device. Log-probs are natural, in nats.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

if TYPE_CHECKING:  # the config is read without torch; every function here gets tensors
    from torch import Tensor

# ---- 1. gate


def is_higher(reward: float, other: float) -> bool:
    """Return whether a reward is higher than another one, in the float32 in which verl keeps rewards.

    Example: ``is_higher(1.0, sum([0.1] * 10))`` is False, though that sum is a hair below 1.
    """
    return bool(np.float32(reward) > np.float32(other))


def accepts(refined_reward: float, reward: float) -> bool:
    """Return whether r(s0, a') > r(s0, a): the condition of Eq. 6. Equal rewards are not accepted."""
    return is_higher(refined_reward, reward)


# ---- 2. alignment

NONE = -1
"""The value in a column of counterparts that stands for "no counterpart"."""


def position(response_ids: Sequence[int], refined_ids: Sequence[int]) -> list[int]:
    """Pair equal positions, as Eq. 6 is written: a_t with a'_t for t = 1..min(len a, len a').

    Returns:
        (len a,) for each token of a the 0-based position in a' that it is charged for, or NONE.
    """
    return [t if t < len(refined_ids) else NONE for t in range(len(response_ids))]


def diff(response_ids: Sequence[int], refined_ids: Sequence[int]) -> list[int]:
    """Pair only the tokens of a that the shortest edit from a to a' replaces or deletes.

    A replaced token is paired with the token that replaces it, a deleted token with the token with which a' goes on.
    Kept tokens have no counterpart. Inserted tokens are nobody's counterpart, as no token of a is to blame for them.

    Example: a = (1, 7, 7, 2) and a' = (1, 2): both 7 are charged for a'_1 = 2. a = (1, 7, 2), a' = (1, 8, 2): 7 for 8.

    Returns:
        (len a,) as in :func:`position`.
    """
    pairs = [NONE] * len(response_ids)
    for edit in Levenshtein.editops(response_ids, refined_ids):
        if edit.tag != "insert":
            pairs[edit.src_pos] = min(edit.dest_pos, len(refined_ids) - 1)
    return pairs


ALIGNMENTS: dict[str, Callable[[Sequence[int], Sequence[int]], list[int]]] = {"position": position, "diff": diff}


def counterparts(
    alignment: str, response_ids: Sequence[int], refined_ids: Sequence[int], num_kept: int = 0
) -> list[int]:
    """Return c(t) for each token of a, (len a,), by one of ALIGNMENTS.

    The first ``num_kept`` tokens, a thought with which both a and a' begin, have NONE.
    """
    return [NONE] * num_kept + ALIGNMENTS[alignment](response_ids, refined_ids)[num_kept:]


def times_charged(pairs: Sequence[int], num_refined: int, num_kept: int = 0) -> list[float]:
    """Return how many tokens of a are charged for each token of a', (len a',): its weight in D.

    With these weights the cross-entropy of a' has the gradient of D (mode ``lagrangian``).
    """
    counts = [0.0] * num_refined
    for pair in pairs:
        if pair != NONE:
            counts[pair] += 1
    return [0.0] * num_kept + counts[num_kept:]


# ---- 3. charge


def charge(*, refine_log_probs: "Tensor", counterparts: "Tensor", response_mask: "Tensor") -> "Tensor":
    """Return log pi_theta(a'_c(t) | s0, a'_<c(t)) for every charged token t of a, and 0 elsewhere.

    Minus the sum over t is D of Eq. 6.

    Args:
        refine_log_probs: (B, U) log-probs of a' under the policy before this step's updates, no gradient.
        counterparts: (B, T) int64, 0-based c(t), NONE where nothing is charged: all of a row that the reward gate
            rejected, what is beyond the shorter of a and a', what the refiner was made to keep, padding.
        response_mask: (B, T) 1 on tokens of a that the policy wrote, 0 on tool output and padding.

    Returns:
        (B, T), <= 0.
    """
    charged = (counterparts != NONE) & response_mask.bool()
    found = refine_log_probs.gather(1, counterparts.clamp(min=0))
    return found.where(charged, found.new_zeros(()))


# ---- 4. credit


class PenaltyInputs(NamedTuple):
    """The inputs of the penalty of B responses."""

    charged: "Tensor"
    """(B, T) the charge of each token, in nats, from :func:`charge` or by the mode (``PenaltyPart.charge``), times the
    row's scale."""
    cost: "Tensor"
    """(B,) what each response pays as a whole (``PenaltyPart.cost``), times the row's scale: D of Eq. 6; with credit
    ``in_reward`` D / min(n, m); of a mode's own charge minus its sum. It is subtracted, the charge of a token is
    added."""
    turn_mask: "Tensor"
    """(B, T) 1 on the policy's tokens of the refined turn."""
    rewritten_mask: "Tensor"
    """(B, T) 1 on the tokens of the turn that come after the kept thought."""


def since(start: "Tensor", response_mask: "Tensor") -> "Tensor":
    """Return the mask (B, T) of the tokens that the policy wrote from a position (B,) on."""
    places = response_mask.new_ones(response_mask.shape[1]).cumsum(0) - 1
    return response_mask * (places >= start[:, None])


def penalty_inputs(
    *,
    starts: Sequence[int],
    num_kept: Sequence[int],
    costs: Sequence[float],
    scales: Sequence[float],
    charged: "Tensor",
    response_mask: "Tensor",
) -> PenaltyInputs:
    """Return the inputs of the penalty of B responses.

    Args:
        starts: (B,) the first position of each refined turn.
        num_kept: (B,) the number of tokens of each turn with which its a' was begun.
        costs: (B,) the amount that each response pays as a whole, in nats.
        scales: (B,) the weight of each row's data source as a multiple of eta (``Constraint.scale``).
        charged: (B, T) the charge of each token, in nats.
        response_mask: (B, T) 1 on tokens that the policy wrote.
    """
    start, kept = response_mask.new_tensor(starts), response_mask.new_tensor(num_kept)
    scale = charged.new_tensor(scales)
    return PenaltyInputs(
        charged=charged * scale[:, None],
        cost=charged.new_tensor(costs) * scale,
        turn_mask=since(start, response_mask),
        rewritten_mask=since(start + kept, response_mask),
    )


def each_token(own: "Tensor", inputs: PenaltyInputs, eta: float) -> "Tensor":
    """Add eta * charged_t to token t: in the rewards, where a critic learns to expect it, or in the advantages.

    In the advantages, with charged_t = log pi_0 - log pi_theta (target ``in_place``), this is the gradient of -eta / 2
    times the sum of charged_t^2, with a and c held fixed.
    """
    return own + eta * inputs.charged


def at_end(own: "Tensor", inputs: PenaltyInputs, eta: float) -> "Tensor":
    """Take the cost from the reward of the turn's last token, where the task's reward is."""
    is_last = inputs.turn_mask * (inputs.turn_mask.flip(-1).cumsum(-1).flip(-1) == 1)
    return own.where(~is_last.bool(), own - eta * inputs.cost[:, None])


def return_to_go(own: "Tensor", inputs: PenaltyInputs, eta: float) -> "Tensor":
    """Add the penalty's return-to-go (gamma = 1): A_t = A_group + sum over k >= t of p_k.

    The outcome reward was normalised within its group before, so a penalty never changes the advantages of its
    siblings. The paper's code base does the same for DAPO. The tokens of a kept thought answer for nothing.
    """
    return own + (eta * inputs.charged).flip(-1).cumsum(-1).flip(-1) * inputs.rewritten_mask


def whole(own: "Tensor", inputs: PenaltyInputs, eta: float) -> "Tensor":
    """Charge every token of the turn for the whole D: a' depends on all tokens of a, so each token had a part in it.

    With the cross-entropy in the loss it is the gradient of -eta E[D] (mode ``lagrangian``).
    """
    return own.where(~inputs.turn_mask.bool(), own - eta * inputs.cost[:, None])
