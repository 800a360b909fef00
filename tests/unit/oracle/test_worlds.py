"""The expected update of a step's functions against exact gradients, and the trap of short answers."""

import json
import sys

import check_gradient
import pytest
import torch
import worlds

LOWEST_OF_TWO_WORLDS = {
    "lagrangian": 1.0,
    "lagrangian_diff": 1.0,
    "lagrangian_return_to_go": 0.92729,
    "lagrangian_accepted": 0.966593,
    "penalty": 0.854194,
    "sft": 0.190431,
    "in_place": 1.0,
    "soft": 1.0,
}


def gradient(world: worlds.World, *, eta: float = 0.0) -> torch.Tensor:
    """Return the gradient of -E[D], or with a weight of E[r] - eta * E[D]."""
    parameters = world.parameters.clone().requires_grad_()
    value = -world.divergence(parameters)
    if eta:
        value = world.reward(parameters) + eta * value
    return torch.autograd.grad(value, parameters)[0]


@pytest.mark.parametrize("agg_mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_both_terms_have_one_normaliser(agg_mode: str) -> None:
    world = worlds.make_world(3)
    update = worlds.expected_update(
        world,
        world.parameters,
        worlds.constraint("lagrangian"),
        eta=0.7,
        is_rewarded=False,
        loss_agg_mode=agg_mode,
    )
    truth = 0.7 * gradient(world)
    tokens, rows = worlds.MASK.sum(), len(worlds.RESPONSES)
    divisor = {"token-mean": tokens, "token-sum": 1, "seq-mean-token-sum": rows, "seq-mean-token-sum-norm": 4 * rows}
    torch.testing.assert_close(update * divisor[agg_mode], truth, atol=1e-5, rtol=1e-4)


def test_reward_and_constraint_are_weighed_by_eta() -> None:
    """The reward is divided by its deviation, as in a group, and the constraint is not."""
    world = worlds.make_world(4)
    settings = {"eta": 0.3, "is_rewarded": True}
    update = worlds.expected_update(world, world.parameters, worlds.constraint("lagrangian"), **settings)
    chances, rewards = world.log_probs(world.parameters).sum(-1).exp(), torch.tensor(world.rewards)
    deviation = (chances @ (rewards - chances @ rewards) ** 2).sqrt().item()
    truth = gradient(world, eta=0.3 * deviation) / deviation
    torch.testing.assert_close(update * worlds.MASK.sum(), truth, atol=1e-5, rtol=1e-4)


def test_the_script_says_how_far_each_mode_is_from_the_gradient(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["check_gradient.py", "--worlds", "2"])
    with pytest.raises(SystemExit) as ended:
        check_gradient.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended.value.code == 0
    del found["mean"], found["num_worlds"]
    assert found == pytest.approx(LOWEST_OF_TWO_WORLDS, abs=2e-6)
    monkeypatch.setitem(check_gradient.MODES, "lagrangian", check_gradient.MODES["penalty"])
    with pytest.raises(SystemExit) as ended:
        check_gradient.main()
    assert ended.value.code == 1


def ends_in(world: worlds.World, **settings: str) -> float:
    """Return the reward after a training with a heavy constraint."""
    end = worlds.ascend(world, worlds.constraint(**settings), eta=3.0, rate=400.0, num_steps=15)
    return world.reward(end).item()


def test_the_trap_of_short_answers() -> None:
    """If the refiner improves all answers but the empty one, a heavy penalty alone makes the empty one the cheapest."""
    world = worlds.make_world(0, improves=0.9, worsens=0.0)
    assert ends_in(world, mode="penalty") < -0.9, "-1 is the reward of the empty answer"
    free = ends_in(world, mode="none")
    assert free > 0.99
    others = (ends_in(world, mode="penalty", credit="in_reward"), ends_in(world, mode="lagrangian"))
    assert min(others) > free - 0.01
