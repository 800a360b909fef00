"""Eq. 6 against numbers worked out by hand."""

import math

import pytest
import torch

from recipe.online_refiner.alignment import counterparts, position
from recipe.online_refiner.constraint import accepts, charge, kl_to_reference
from recipe.online_refiner.credit import return_to_go, token_penalty

# Five rows: accepted with a' shorter than a; accepted with a' longer; rejected; accepted, but a has a tool token at
# position 1; padding (no refinement, no response token).
LOG_PROBS = torch.tensor(
    [
        [-1.0, -2.0, 0.0, 0.0],
        [-0.5, -0.25, -4.0, -8.0],
        [-3.0, -3.0, -3.0, 0.0],
        [-1.0, -1.0, -1.0, 0.0],
        [-9.0, 0.0, 0.0, 0.0],
    ]
)
REFINE_MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
RESPONSE_MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 0, 0]])
ACCEPTED = torch.tensor([True, True, False, True, False])
COUNTERPARTS = counterparts(
    position,
    [[5] * 3, [5] * 2, [5] * 3, [5] * 3, [5]],
    [[6] * 2, [6] * 4, [6] * 3, [6] * 3, [6]],
    ACCEPTED.tolist(),
    [0] * 5,
    [0] * 5,
)
ETA = torch.tensor([[0.1]])


def charged(log_probs: torch.Tensor = LOG_PROBS) -> torch.Tensor:
    return charge(refine_log_probs=log_probs, counterparts=COUNTERPARTS, response_mask=RESPONSE_MASK)


def penalty() -> torch.Tensor:
    return token_penalty(charged(), ETA)


def test_penalty_by_hand() -> None:
    expected = torch.tensor(
        [[-0.1, -0.2, 0.0], [-0.05, -0.025, 0.0], [0.0, 0.0, 0.0], [-0.1, 0.0, -0.1], [0.0, 0.0, 0.0]]
    )
    torch.testing.assert_close(penalty(), expected, atol=1e-6, rtol=0)


def test_penalised_advantages_by_hand() -> None:
    advantages = torch.tensor([[1.0, 1, 1], [-1, -1, 0], [0.5, 0.5, 0.5], [2, 0, 2], [0, 0, 0]])
    expected = torch.tensor([[0.7, 0.8, 1.0], [-1.075, -1.025, 0.0], [0.5, 0.5, 0.5], [1.8, 0.0, 1.9], [0.0, 0.0, 0.0]])
    before = advantages.clone()
    result = return_to_go(advantages, {"refine_charged": charged(), "block": RESPONSE_MASK}, ETA)
    torch.testing.assert_close(result, expected, atol=1e-6, rtol=0)
    assert torch.equal(advantages, before), "the estimator's tensor must not change in place"


def test_eta_zero_gives_exactly_zero_even_for_impossible_tokens() -> None:
    impossible = torch.full_like(LOG_PROBS, -torch.inf)
    assert torch.equal(token_penalty(charged(impossible), 0 * ETA), torch.zeros(5, 3))


def test_garbage_under_the_mask_does_not_leak() -> None:
    dirty = torch.where(REFINE_MASK.bool(), LOG_PROBS, torch.nan)
    assert torch.equal(charged(dirty), charged())


def test_kl_by_hand() -> None:
    # d = log 2 and d = -log 2: k3 = 2 - 1 - log 2 and 0.5 - 1 + log 2; their mean is 0.25.
    log_probs = torch.tensor([[-1.0, -1.0, -7.0]])
    reference = log_probs + torch.tensor([[0.6931471806, -0.6931471806, 5.0]])
    mask = torch.tensor([[1, 1, 0]])
    assert kl_to_reference(log_probs=log_probs, ref_log_probs=reference, response_mask=mask) == pytest.approx(
        0.25, abs=1e-6
    )
    nothing = torch.zeros_like(mask)
    assert math.isnan(kl_to_reference(log_probs=log_probs, ref_log_probs=reference, response_mask=nothing))


@pytest.mark.parametrize(
    ("refined", "reward", "margin", "expected"),
    [(1.0, -0.3, 0.0, True), (-0.3, -0.3, 0.0, False), (-0.6, -0.3, 0.0, False), (0.2, 0.0, 0.2, False)],
)
def test_the_gate_is_strict(refined: float, reward: float, margin: float, expected: bool) -> None:
    assert accepts(refined, reward, margin) is expected
