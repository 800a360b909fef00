"""The weight of the constraint from step to step."""

import math
from pathlib import Path

import pytest

from recipe.online_refiner.blocks import ConstraintConfig
from recipe.online_refiner.eta import SCHEDULES, Adaptive

OWN = {"eta": 0.1, "eta_schedule": "adaptive", "delta": 2.0}


def config(**values: object) -> ConstraintConfig:
    return ConstraintConfig(**{**OWN, **values})


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.1] * 4), ("linear", [0.1, 0.075, 0.05, 0.025]), ("cosine", [0.1, 0.0853553, 0.05, 0.0146447])],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    eta = SCHEDULES[schedule](config(), 4)
    assert [eta.at(step) for step in (1, 2, 3, 4)] == pytest.approx(expected, abs=1e-6)


def test_dual_steps_by_hand() -> None:
    eta = Adaptive(config(eta=0.1, delta=2.0, eta_rate=0.5), 9)
    eta.observe(token=3.0, rollout=0.0)  # D / delta - 1 = 0.5
    assert eta.at(2) == pytest.approx(0.1 * math.exp(0.25))
    eta.observe(token=0.0, rollout=0.0)  # slack: -1
    assert eta.at(3) == pytest.approx(0.1 * math.exp(-0.25))
    eta.observe(token=1e9, rollout=0.0)  # a violation counts as +1 at most
    assert eta.at(4) == pytest.approx(0.1 * math.exp(0.25))


def test_the_bound_is_on_what_the_config_says() -> None:
    """Answers that are empty: the policy is far from the one token of each; per rollout that is little."""
    found = {per: Adaptive(config(divergence_per=per, delta=2.0), 9) for per in ("token", "rollout")}
    for eta in found.values():
        eta.observe(token=3.0, rollout=1.0)
    assert found["token"].at(2) > 0.1 > found["rollout"].at(2)


@pytest.mark.parametrize("start", [1e-3, 0.1, 5.0])
def test_adaptive_eta_converges_to_the_bound(start: float) -> None:
    """A policy whose D answers to eta with a lag: D moves a fifth of the way to 5 / (1 + 20 eta) in a step."""
    eta, found, divergence = Adaptive(config(eta=start, delta=2.0), 400), [], 5.0
    for step in range(1, 401):
        divergence += 0.2 * (5 / (1 + 20 * eta.at(step)) - divergence)
        eta.observe(token=divergence, rollout=0.0)
        found.append(divergence)
    assert found[-50:] == pytest.approx([2.0] * 50, rel=0.02)
    assert eta.at(401) == pytest.approx((5 / 2 - 1) / 20, rel=0.02)


def test_a_slack_constraint_does_not_lose_its_weight_for_ever() -> None:
    eta = Adaptive(config(eta=0.1), 9)
    for _ in range(1000):
        eta.observe(token=0.0, rollout=0.0)
    assert eta.at(1001) == pytest.approx(1e-4)


def test_state_survives_bit_for_bit(tmp_path: Path) -> None:
    first, file = Adaptive(config(), 9), tmp_path / "global_step_7" / "constraint.json"
    for divergence in (3.1, 0.7, 2.2, 1.9):
        first.observe(token=divergence, rollout=0.0)
    first.save(file)
    second = Adaptive(config(), 9)
    second.load(file)
    assert second.at(8).hex() == first.at(8).hex() != Adaptive(config(), 9).at(8).hex()
    for eta in (first, second):
        eta.observe(token=2.5, rollout=0.0)
    assert second.at(9).hex() == first.at(9).hex()


def test_a_checkpoint_without_state_starts_anew(tmp_path: Path) -> None:
    eta = Adaptive(config(), 9)
    eta.load(tmp_path / "constraint.json")
    assert eta.at(1) == 0.1
