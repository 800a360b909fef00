"""Which tokens of a response answer for its D, and when: ``constraint.credit``, as pure functions.

The driver turns numbers of the rollouts into one cost each (``costs``); the worker that has the tensors changes the
advantages by it or, before the estimator, the token-level rewards. Shapes as in ``constraint.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recipe.online_refiner.groups import Member, by_group, mixed_advantages

Costs = Callable[[Sequence[Member]], list[float | None]]
"""From a step's rollouts to a number for each, mostly a cost in nats; None where nothing changes."""
Change = Callable[[Tensor, Mapping[str, Tensor], Tensor], Tensor]
"""(own, data, eta) -> the new advantages or rewards: own (B, T); ``data`` has ``turn`` and ``block`` (B, T), 1 on the
tokens of the turn that was refined and of what of it was written anew, ``cost`` (B,), and the padded columns that the
credit names; eta (B, 1), one for each pair."""

MAX_GAP = 5.0
"""Nats that :func:`divergence` charges at most: the policy gives a'_t* 1/150 of the probability of a_t*."""


def in_full(members: Sequence[Member]) -> list[float | None]:
    """Return D of Eq. 6."""
    return [one.divergence for one in members]


def per_token(members: Sequence[Member]) -> list[float | None]:
    """Return D / min(n, m): nats per token of the shorter of a and a'."""
    return [None if one.divergence is None else one.divergence_per_token for one in members]


def everyone(members: Sequence[Member]) -> list[float | None]:
    """Return 0: each response is meant, whether it has a refinement or not."""
    return [0.0] * len(members)


def as_members(members: Sequence[Member]) -> list[float | None]:
    """Return the advantages in groups in which used refinements are members; None in groups without one."""
    found: list[float | None] = [None] * len(members)
    for group in by_group(members):
        refined = [one for one in (members[index].refined_reward for index in group) if one is not None]
        if refined:
            values, _ = mixed_advantages([members[index].reward for index in group], refined)
            for index, value in zip(group, values, strict=True):
                found[index] = value
    return found


def centred(members: Sequence[Member]) -> list[float | None]:
    """Return D' minus the mean of the siblings' D' (0 without siblings); a group's costs sum to 0.

    D' is D; for a failure without a used refinement, whose reward is no higher than that of a sibling that is charged,
    it is the group's largest D: what the refiner cannot mend is no cheaper than what it can.
    """
    found: list[float | None] = [None] * len(members)
    for group in by_group(members):
        charged = [members[index] for index in group if members[index].divergence is not None]
        if not charged:
            continue
        largest = max(one.divergence or 0.0 for one in charged)
        costs = [members[index].divergence or 0.0 for index in group]
        for place, index in enumerate(group):
            one = members[index]
            if one.divergence is None and any(one.reward <= other.reward for other in charged):
                costs[place] = largest
        for index, cost in zip(group, costs, strict=True):
            found[index] = cost - (sum(costs) - cost) / max(1, len(group) - 1)
    return found


def token_penalty(charged: Tensor, eta: Tensor) -> Tensor:
    """Return the token-level penalty p_t = eta * log pi_theta(a'_c(t)) that is added to the reward of token t.

    It is a penalty: never positive. Its sum over t is -eta * D of Eq. 6.

    Args:
        charged: (B, T) from :func:`recipe.online_refiner.constraint.charge`.
        eta: (B, 1) weight of the constraint; 0 gives exactly 0, also for impossible tokens.
    """
    return torch.where(eta != 0, eta * charged, torch.zeros_like(charged))


def each_token(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Add p_t to the reward of token t: a critic learns to expect it."""
    return own + token_penalty(data["refine_charged"], eta)


def return_to_go(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Add the penalty's return-to-go (gamma = 1): A_t = A_group + sum over k >= t of p_k.

    The outcome reward was normalised within its group before, so a penalty never changes the advantages of its
    siblings. The paper's code base does the same for DAPO. Tokens that the refiner was made to keep answer for nothing.
    """
    return own + token_penalty(data["refine_charged"], eta).flip(-1).cumsum(-1).flip(-1) * data["block"]


def whole(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Charge every token of the turn for all of its cost: a' depends on the whole of a, so each token had a part."""
    return torch.where(data["turn"].bool(), own - eta * data["cost"][:, None], own)


def at_end(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Take the cost from the reward of the turn's last token, where the task's reward is."""
    is_last = data["turn"] * (data["turn"].flip(-1).cumsum(-1).flip(-1) == 1)
    return torch.where(is_last.bool(), own - eta * data["cost"][:, None], own)


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


def divergence(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Charge t* alone, where the policy prefers its token: A_t* += eta * clip(log pi(a'_t*) - log pi(a_t*), -c, 0)."""
    _, first, gap = first_difference(data)
    return own + eta * torch.where(first, gap.clamp(-MAX_GAP, 0), torch.zeros_like(gap))


def exonerate(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Blame no token before t*, A_t = max(A_t, 0): a' shows that it was fine. Any eta > 0 does the same."""
    before, _, _ = first_difference(data)
    return torch.where(before & (eta > 0), own.clamp(min=0), own)


def nothing(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Let the turn learn nothing from its own reward, A_t = 0. Any eta > 0 does the same."""
    return torch.where(data["turn"].bool() & (eta != 0), torch.zeros_like(own), own)


def instead(own: Tensor, data: Mapping[str, Tensor], eta: Tensor) -> Tensor:
    """Replace the advantage of the turn by ``cost``. Any eta > 0 does the same."""
    return torch.where(data["turn"].bool() & (eta != 0), data["cost"][:, None].to(own.dtype), own)


class Credit(NamedTuple):
    """A way to charge: the driver's part and the worker's."""

    costs: Costs
    columns: tuple[str, ...]
    """Of the TransferQueue, that the worker's part reads."""
    advantages: Change | None
    """After a critic-free estimator; None: such an estimator sees the penalised reward, as a critic does."""
    rewards: Change | None
    """Before the estimator; None: not for a critic."""
    charges: bool = True
    """Whether costs are what responses pay (``constraint/penalty``)."""


PAIR = ("responses", "old_log_probs", "refine_ids", "refine_mask", "refine_log_probs")
CREDITS: dict[str, Credit] = {
    "return_to_go": Credit(in_full, ("refine_charged",), return_to_go, each_token),
    "whole": Credit(in_full, (), whole, at_end),
    "in_reward": Credit(per_token, (), None, at_end),
    "centred": Credit(centred, (), whole, None),
    "divergence": Credit(in_full, PAIR, divergence, None, charges=False),
    "exonerate": Credit(in_full, PAIR, exonerate, None, charges=False),
    "routed": Credit(in_full, (), nothing, None, charges=False),
    "silent": Credit(everyone, (), nothing, None, charges=False),
    "members": Credit(as_members, (), instead, None, charges=False),
}
