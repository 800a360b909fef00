"""Which tokens of a response answer for its D, and when: ``constraint.credit``, as pure functions.

The driver turns numbers of the rollouts into one cost each (``costs``); the worker that has the tensors changes the
advantages by it or, before the estimator, the token-level rewards. Shapes as in ``constraint.py``.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recipe.online_refiner.step import Member

Costs = Callable[[Sequence[Member]], list[float]]
"""From a step's rollouts to a cost for each, in nats; 0 where nothing is to be charged."""
Change = Callable[[Tensor, Mapping[str, Tensor], float], Tensor]
"""(own, data, eta) -> the new advantages or rewards: own (B, T); ``data`` has ``turn`` (B, T), 1 on the tokens of the
turn that was refined, ``cost`` (B,), and the padded columns that the credit names."""

MAX_GAP = 5.0
"""Nats that :func:`divergence` charges at most: the policy gives a'_t* 1/150 of the probability of a_t*."""


def in_full(members: Sequence[Member]) -> list[float]:
    """Return D of Eq. 6."""
    return [one.divergence or 0.0 for one in members]


def per_token(members: Sequence[Member]) -> list[float]:
    """Return D / min(n, m): nats per token of the shorter of a and a'."""
    return [one.divergence_per_token for one in members]


def centred(members: Sequence[Member]) -> list[float]:
    """Return D' minus the mean of the siblings' D' (0 without siblings); a group's costs sum to 0.

    D' is D; for a failure without a used refinement, whose reward is no higher than that of a sibling that is charged,
    it is the group's largest D: what the refiner cannot mend is no cheaper than what it can.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, one in enumerate(members):
        groups[one.group].append(index)
    costs = in_full(members)
    for group in groups.values():
        charged = [members[index] for index in group if members[index].divergence is not None]
        for index in group:
            one = members[index]
            if one.divergence is None and any(one.reward <= other.reward for other in charged):
                costs[index] = max(other.divergence or 0.0 for other in charged)
        total = sum(costs[index] for index in group)
        for index in group:
            costs[index] -= (total - costs[index]) / max(1, len(group) - 1)
    return costs


def token_penalty(charged: Tensor, eta: float) -> Tensor:
    """Return the token-level penalty p_t = eta * log pi_theta(a'_c(t)) that is added to the reward of token t.

    It is a penalty: never positive. Its sum over t is -eta * D of Eq. 6.

    Args:
        charged: (B, T) from :func:`recipe.online_refiner.constraint.charge`.
        eta: weight of the constraint, >= 0; 0 gives exactly 0, also for impossible tokens.
    """
    return eta * charged if eta > 0 else torch.zeros_like(charged)


def each_token(own: Tensor, data: Mapping[str, Tensor], eta: float) -> Tensor:
    """Add p_t to the reward of token t: a critic learns to expect it."""
    return own + token_penalty(data["refine_charged"], eta)


def return_to_go(own: Tensor, data: Mapping[str, Tensor], eta: float) -> Tensor:
    """Add the penalty's return-to-go (gamma = 1): A_t = A_group + sum over k >= t of p_k.

    The outcome reward was normalised within its group before, so a penalty never changes the advantages of its
    siblings. The paper's code base does the same for DAPO.
    """
    return own + token_penalty(data["refine_charged"], eta).flip(-1).cumsum(-1).flip(-1) * data["turn"]


def whole(own: Tensor, data: Mapping[str, Tensor], eta: float) -> Tensor:
    """Charge every token of the turn for all of its cost: a' depends on the whole of a, so each token had a part."""
    return own - eta * data["cost"][:, None] * data["turn"]


def at_end(own: Tensor, data: Mapping[str, Tensor], eta: float) -> Tensor:
    """Take the cost from the reward of the turn's last token, where the task's reward is."""
    is_last = data["turn"] * (data["turn"].flip(-1).cumsum(-1).flip(-1) == 1)
    return own - eta * data["cost"][:, None] * is_last


def first_difference(data: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Find t*, the first t <= min(n, m) with a_t != a'_t: the only place where both choose from the same state.

    Returns:
        (B, T) bool, the tokens of a before t* (all up to min(n, m) where none differs); (B, T) bool, t* itself; (B, T)
        log pi_theta(a'_t) - log pi_theta(a_t), which means something up to t*.
    """
    aligned = torch.arange(data["responses"].shape[1]) - data["refine_start"][:, None]
    both = data["turn"].bool() & (aligned < data["refine_mask"].sum(-1, keepdim=True))
    aligned = aligned.clamp(0, data["refine_ids"].shape[1] - 1)
    differs = both & (data["refine_ids"].gather(1, aligned) != data["responses"])
    gap = data["refine_log_probs"].gather(1, aligned) - data["old_log_probs"]
    num_before = differs.cumsum(-1)
    return both & (num_before == 0), differs & (num_before == 1), gap


def divergence(own: Tensor, data: Mapping[str, Tensor], eta: float) -> Tensor:
    """Charge t* alone, where the policy prefers its token: A_t* += eta * clip(log pi(a'_t*) - log pi(a_t*), -c, 0)."""
    _, first, gap = first_difference(data)
    return own + eta * torch.where(first, gap.clamp(-MAX_GAP, 0), torch.zeros_like(gap))


def exonerate(own: Tensor, data: Mapping[str, Tensor], eta: float) -> Tensor:
    """Blame no token before t*, A_t = max(A_t, 0): a' shows that it was fine. Any eta > 0 does the same."""
    before, _, _ = first_difference(data)
    return torch.where(before & (eta > 0), own.clamp(min=0), own)


class Credit(NamedTuple):
    """A way to charge: the driver's part and the worker's."""

    costs: Costs
    columns: tuple[str, ...]
    """Of the TransferQueue, that the worker's part reads."""
    advantages: Change | None
    """After a critic-free estimator; None: such an estimator sees the penalised reward, as a critic does."""
    rewards: Change | None
    """Before the estimator; None: not for a critic."""


PAIR = ("responses", "old_log_probs", "refine_ids", "refine_mask", "refine_log_probs")
CREDITS: dict[str, Credit] = {
    "return_to_go": Credit(in_full, ("refine_charged",), return_to_go, each_token),
    "whole": Credit(in_full, (), whole, at_end),
    "in_reward": Credit(per_token, (), None, at_end),
    "centred": Credit(centred, (), whole, None),
    "divergence": Credit(in_full, PAIR, divergence, None),
    "exonerate": Credit(in_full, PAIR, exonerate, None),
}
