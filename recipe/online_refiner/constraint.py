"""The dynamic constraint, Eq. 6 of the paper, from the gate to the advantages. Pure functions; read from top to bottom.

    D = sum over t of -log pi_theta(a'_c(t) | s0, a'_<c(t))   for pairs with r(s0, a') > r(s0, a)

1. *Gate*: which pairs count. 2. *Alignment*: which token of a' a token of a is charged for, c(t). 3. *Charge*: its
log-prob. 4. *Credit*: which tokens of a answer for the charge, and whether before or after the advantage estimator.
5. *Eta*: the weight of it all, from step to step. The cross-entropy of a' in the loss is in ``loss.py``.

Notation: B rollouts, T response tokens (right-padded), U refinement tokens (right-padded); a is the response (its last
turn) and a' its refinement. All tensors of one call live on one device. Log-probs are natural, in nats.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from recipe.online_refiner.config.fields import ConstraintConfig

# ---- 1. gate


def accepts(refined_reward: float, reward: float) -> bool:
    """Return whether r(s0, a') > r(s0, a): the condition of Eq. 6. Equal rewards are not accepted."""
    return refined_reward > reward


# ---- 2. alignment

NONE = -1
"""Position of what has no counterpart."""


def position(response_ids: Sequence[int], refined_ids: Sequence[int]) -> list[int]:
    """Pair equal positions, as Eq. 6 is written: a_t with a'_t for t = 1..min(len a, len a').

    Returns:
        (len a,) for each token of a the 0-based position in a' that it is charged for, or NONE.
    """
    return [t if t < len(refined_ids) else NONE for t in range(len(response_ids))]


def diff(response_ids: Sequence[int], refined_ids: Sequence[int]) -> list[int]:
    """Pair only the tokens of a that the shortest edit from a to a' replaces or deletes.

    A replaced token belongs to the token that replaces it; a deleted one to the token with which a' goes on instead.
    Kept tokens have no counterpart, and neither have insertions: no token of a is to blame for them.

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
    """Return c(t) for each token of a, (len a,); NONE for tokens that the refiner's answer was begun with.

    Args:
        alignment: One of ALIGNMENTS.
        response_ids: a.
        refined_ids: a'.
        num_kept: With how many tokens of a the refiner's answer was begun. The policy wrote them: they cost nothing.
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


def charge(*, refine_log_probs: Tensor, counterparts: Tensor, response_mask: Tensor) -> Tensor:
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
    return torch.where(charged, found, torch.zeros_like(found))


def charge_in_place(*, reference_log_probs: Tensor, log_probs: Tensor, turn: Tensor, clip: float | None) -> Tensor:
    """Return log pi_0(a_t | c, a_<t) - log pi_theta(a_t | s0, a_<t) for every token of the turn, and 0 elsewhere.

    The other target (``constraint.target=in_place``) charges the policy's own tokens, not a'; pi_0 has read the better
    answer in its prompt c. With the bare prompt as c, and one turn, it is what verl charges for KL (its k1:
    ``verl.trainer.ppo.core_algos.kl_penalty``).

    Args:
        reference_log_probs: (B, T) under pi_0 given c.
        log_probs: (B, T) under the policy before this step's updates.
        turn: (B, T) 1 on the policy's tokens of the scored turn.
        clip: Largest charge of a token, in nats, either way; None: no limit.

    Returns:
        (B, T); of either sign. Minus the sum over t is an estimate of the KL from the policy to pi_0 given c.
    """
    charged = (reference_log_probs - log_probs) * turn
    return charged if clip is None else charged.clamp(-clip, clip)


# ---- 4. credit


class Charges(NamedTuple):
    """What some responses are charged for, B rows."""

    charged: Tensor
    """(B, T) from :func:`charge`."""
    cost: Tensor
    """(B,) D of Eq. 6; with credit ``in_reward`` D / min(n, m)."""
    turn: Tensor
    """(B, T) 1 on the policy's tokens of the refined turn."""
    rewritten: Tensor
    """(B, T) the same without those that the refiner's answer was begun with (in place: all of them)."""


def since(start: Tensor, response_mask: Tensor) -> Tensor:
    """Return the mask of the tokens that the policy wrote from a position on, (B, T).

    Args:
        start: (B,) where the refined turn begins.
        response_mask: (B, T) as in :func:`charge`.
    """
    return response_mask * (torch.arange(response_mask.shape[1], device=start.device) >= start[:, None])


def each_token(own: Tensor, charges: Charges, eta: float) -> Tensor:
    """Add the penalty of token t, eta * charged_t, to its reward, where a critic learns to expect it.

    Or to its advantage, in place: the gradient of -eta / 2 times the sum of charged_t^2, a and c held fixed.
    """
    return own + eta * charges.charged


def at_end(own: Tensor, charges: Charges, eta: float) -> Tensor:
    """Take the cost from the reward of the turn's last token, where the task's reward is."""
    is_last = charges.turn * (charges.turn.flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(is_last.bool(), own - eta * charges.cost[:, None], own)


def return_to_go(own: Tensor, charges: Charges, eta: float) -> Tensor:
    """Add the penalty's return-to-go (gamma = 1): A_t = A_group + sum over k >= t of p_k.

    The outcome reward was normalised within its group before, so a penalty never changes the advantages of its
    siblings. The paper's code base does the same for DAPO. Tokens that the refiner was made to keep answer for nothing.
    """
    return own + (eta * charges.charged).flip(-1).cumsum(-1).flip(-1) * charges.rewritten


def whole(own: Tensor, charges: Charges, eta: float) -> Tensor:
    """Charge every token of the turn for all of D: a' depends on the whole of a, so each token had a part.

    With the cross-entropy in the loss it is the gradient of -eta E[D] (mode ``lagrangian``).
    """
    return torch.where(charges.turn.bool(), own - eta * charges.cost[:, None], own)


Change = Callable[[Tensor, Charges, float], Tensor]
"""(own, charges, eta) -> rewards or advantages with the penalty, (B, T)."""
IN_REWARDS: dict[str, Change] = {
    **{"return_to_go": each_token, "token": each_token},
    **{"whole": at_end, "in_reward": at_end},
}
"""Before the estimator, by credit: a critic sees the penalty; with ``in_reward`` so does a group's normalisation."""
IN_ADVANTAGES: dict[str, Change] = {"return_to_go": return_to_go, "token": each_token, "whole": whole}
"""After a critic-free estimator, by credit."""

# ---- 5. eta


class Eta:
    """``constraint.eta`` times a function of the share of steps done. Steps count from 1."""

    SHAPES: dict[str, Callable[[float], float]] = {
        "constant": lambda done: 1.0,
        "linear": lambda done: 1 - done,
        "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    }

    def __init__(self, config: ConstraintConfig, num_steps: int) -> None:
        """Start at ``constraint.eta``; ``num_steps`` are those of the whole run."""
        self.config, self.num_steps = config, num_steps

    def at(self, step: int) -> float:
        """Return the eta of a step."""
        return self.config.first_eta * self.SHAPES[self.config.eta_schedule]((step - 1) / self.num_steps)

    def observe(self, divergence_per_token: float) -> None:
        """Take note of D of a step whose eta was used, in nats per token."""

    def save(self, path: Path) -> None:
        """Write what a resumed run needs and the step does not tell."""

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote."""


class AdaptiveEta(Eta):
    """Dual ascent on Eq. 5, max reward subject to D <= delta: eta is its multiplier.

    After each step eta <- eta * exp(RATE * clip(D / delta - 1, -1, 1)): it grows while the constraint is violated and
    decays while it is slack (the multiplicative form of the dual update, which keeps eta positive and does not depend
    on the unit of D). It stays within a factor of RANGE around ``constraint.eta``.
    """

    RATE, RANGE = 0.1, 1000.0

    def __init__(self, config: ConstraintConfig, num_steps: int) -> None:
        """Start at ``constraint.eta``."""
        super().__init__(config, num_steps)
        self.value = config.first_eta

    def at(self, step: int) -> float:
        """Return the multiplier."""
        return self.value

    def observe(self, divergence_per_token: float) -> None:
        """Make the dual step; a D that is not a number says nothing."""
        assert self.config.delta is not None
        if math.isnan(divergence_per_token):
            return
        violation = min(1.0, divergence_per_token / self.config.delta - 1)  # D >= 0, so never below -1
        first = self.config.first_eta
        self.value = min(max(self.value * math.exp(self.RATE * violation), first / self.RANGE), first * self.RANGE)

    def save(self, path: Path) -> None:
        """Write the multiplier; JSON keeps every bit of a float."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"eta": self.value}), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Read the multiplier; a checkpoint of another schedule has none, and it starts again."""
        if path.exists():
            self.value = json.loads(path.read_text(encoding="utf-8"))["eta"]


def make_eta(config: ConstraintConfig, num_steps: int) -> Eta:
    """Return the schedule that the config names."""
    return (AdaptiveEta if config.eta_schedule == "adaptive" else Eta)(config, num_steps)
