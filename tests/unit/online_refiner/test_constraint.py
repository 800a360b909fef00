"""Eq. 6 from the gate to the advantages, against numbers worked out by hand, and what holds for all others."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from torch import Tensor
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import apply_kl_penalty

from recipe.online_refiner.method.eq6 import (
    ALIGNMENTS,
    NONE,
    PenaltyInputs,
    accepts,
    charge,
    counterparts,
    diff,
    position,
    return_to_go,
    since,
    times_charged,
)
from recipe.online_refiner.method.eta import Eta
from recipe.online_refiner.method.in_place import InPlacePenalty
from recipe.online_refiner.method.modes import read_constraint
from recipe.online_refiner.method.penalty import PenaltyPart, Place

CREDITS: dict[str, PenaltyPart] = {
    name: penalty
    for name, values in {
        "return_to_go": {"mode": "penalty"},
        "in_reward": {"mode": "penalty", "credit": "in_reward"},
        "whole": {"mode": "lagrangian"},
        "token": {"mode": "penalty", "target": "in_place"},
    }.items()
    if (penalty := read_constraint(values).penalty) is not None
}
PLACES: list[tuple[str, Place]] = [(name, place) for name in CREDITS for place in ("rewards", "advantages")]
PLACES.remove(("in_reward", "advantages"))


def paid(name: str, place: Place, own: Tensor, inputs: PenaltyInputs, eta: float) -> Tensor:
    return CREDITS[name].pay(own, inputs, eta, place)


EOS, N = 0, NONE
TOKENS = st.lists(st.integers(1, 4), max_size=8).map(lambda ids: [*ids, EOS])


def padded(rows: list[list[int]], value: float = 0) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=value
    )


# ---- gate and alignment


@pytest.mark.parametrize(("refined", "reward", "expected"), [(1.0, -0.3, True), (-0.3, -0.3, False), (-0.6, 0, False)])
def test_the_gate_is_strict(refined: float, reward: float, expected: bool) -> None:
    assert accepts(refined, reward) is expected


@pytest.mark.parametrize(
    ("response", "refined", "by_position", "by_diff"),
    [
        # identical
        ([1, 2, EOS], [1, 2, EOS], [0, 1, 2], [N, N, N]),
        # replaced: start, middle, end
        ([9, 2, 3, EOS], [1, 2, 3, EOS], [0, 1, 2, 3], [0, N, N, N]),
        ([1, 9, 3, EOS], [1, 2, 3, EOS], [0, 1, 2, 3], [N, 1, N, N]),
        ([1, 2, 3], [1, 2, EOS], [0, 1, 2], [N, N, 2]),
        # deleted: start, middle, end
        ([9, 1, 2, EOS], [1, 2, EOS], [0, 1, 2, N], [0, N, N, N]),
        ([1, 9, 9, 2, EOS], [1, 2, EOS], [0, 1, 2, N, N], [N, 1, 1, N, N]),
        ([1, 2, 9, EOS], [1, 2, EOS], [0, 1, 2, N], [N, N, 2, N]),
        # deleted behind the end of a', of which nothing follows: its last token stands in
        ([1, EOS, 9, 9], [1, EOS], [0, 1, N, N], [N, N, 1, 1]),
        # inserted: start, middle, end
        ([1, 2, EOS], [9, 1, 2, EOS], [0, 1, 2], [N, N, N]),
        ([1, 2, EOS], [1, 9, 2, EOS], [0, 1, 2], [N, N, N]),
        ([1, 2, EOS], [1, 2, 9, EOS], [0, 1, 2], [N, N, N]),
        # only EOS is left
        ([7, 8, EOS], [EOS], [0, N, N], [0, 0, N]),
    ],
)
def test_counterparts_by_hand(
    response: list[int], refined: list[int], by_position: list[int], by_diff: list[int]
) -> None:
    assert position(response, refined) == counterparts("position", response, refined) == by_position
    assert diff(response, refined) == counterparts("diff", response, refined) == by_diff


def test_what_the_answer_was_begun_with_is_charged_to_nobody() -> None:
    pairs = counterparts("position", [1, 7, 7, EOS], [1, 8, EOS], num_kept=1)
    assert pairs == [N, 1, 2, N]
    assert times_charged(pairs, 3, num_kept=1) == [0, 1, 1]
    assert times_charged([N, 1, 1, N, N], 3) == [0, 2, 0], "two tokens were taken out before a'_1"


@given(response=TOKENS, refined=TOKENS)
def test_diff_charges_what_the_shortest_edit_takes_out(response: list[int], refined: list[int]) -> None:
    pairs = diff(response, refined)
    kept = [token for token, pair in zip(response, pairs, strict=True) if pair == NONE]
    rest = iter(refined)
    assert all(token in rest for token in kept), "what is not charged stands in a', in this order"
    assert len(kept) >= max(len(response), len(refined)) - Levenshtein.distance(response, refined)
    assert all(NONE <= pair < len(refined) for pair in pairs)


@given(
    kept=st.lists(st.integers(1, 4), max_size=3), response=TOKENS, refined=TOKENS, name=st.sampled_from([*ALIGNMENTS])
)
def test_times_charged_are_the_gradient_of_d(
    kept: list[int], response: list[int], refined: list[int], name: str
) -> None:
    response, refined = kept + response, kept + refined
    pairs = counterparts(name, response, refined, len(kept))
    log_probs = torch.zeros(1, len(refined), requires_grad=True)
    mask = torch.ones(1, len(response))
    charge(refine_log_probs=log_probs, counterparts=torch.tensor([pairs]), response_mask=mask).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad[0].tolist() == times_charged(pairs, len(refined), len(kept))
    assert log_probs.grad[0, : len(kept)].tolist() == [0] * len(kept)


# ---- charge

# Five rows: accepted with a' shorter than a; accepted with a' longer; rejected; accepted, but a has a tool token at
# position 1; padding (no refinement, no response token).
LOG_PROBS = [[-1.0, -2.0, 0, 0], [-0.5, -0.25, -4, -8], [-3.0, -3, -3, 0], [-1.0, -1, -1, 0], [-9.0, 0, 0, 0]]
COUNTERPARTS = [[0, 1, N], [0, 1, N], [N, N, N], [0, 1, 2], [N, N, N]]
RESPONSE_MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 1], [0, 0, 0]])


def charged_by_hand(log_probs: Tensor) -> Tensor:
    return charge(refine_log_probs=log_probs, counterparts=torch.tensor(COUNTERPARTS), response_mask=RESPONSE_MASK)


def test_charge_and_penalised_advantages_by_hand() -> None:
    charged = charged_by_hand(torch.tensor(LOG_PROBS))
    assert charged.tolist() == [[-1, -2, 0], [-0.5, -0.25, 0], [0, 0, 0], [-1, 0, -1], [0, 0, 0]]
    own = torch.tensor([[1.0, 1, 1], [-1, -1, 0], [0.5, 0.5, 0.5], [2, 0, 2], [0, 0, 0]])
    found = return_to_go(own, PenaltyInputs(charged, -charged.sum(-1), RESPONSE_MASK, RESPONSE_MASK), 0.1)
    expected = torch.tensor([[0.7, 0.8, 1.0], [-1.075, -1.025, 0.0], [0.5, 0.5, 0.5], [1.8, 0.0, 1.9], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_garbage_where_nothing_is_charged_does_not_leak() -> None:
    dirty = torch.tensor(LOG_PROBS)
    dirty[0, 2:], dirty[2], dirty[3, 3:], dirty[4] = math.nan, math.nan, math.nan, -math.inf
    assert torch.equal(charged_by_hand(dirty), charged_by_hand(torch.tensor(LOG_PROBS)))


# ---- credit: `x - y <eos>` with the refinement `x + y <eos>`; the policy gives `+` 0.2

ETA, PROBABILITIES = 0.1, [0.9, 0.2, 0.8, 0.9]


def charges_by_hand(num_kept: int) -> PenaltyInputs:
    pairs = torch.tensor([counterparts("position", [5, 6, 7, 2], [5, 8, 7, 2], num_kept)])
    mask = torch.ones(1, 4, dtype=torch.long)
    charged = charge(refine_log_probs=torch.tensor([PROBABILITIES]).log(), counterparts=pairs, response_mask=mask)
    return PenaltyInputs(charged, -charged.sum(-1), mask, since(torch.tensor([num_kept]), mask))


@pytest.mark.parametrize(
    ("name", "num_kept", "expected"),
    [
        ("return_to_go", 0, [-0.704, -0.694, -0.533, -0.511]),
        ("whole", 0, [-0.704] * 4),
        # With `x` kept, D is 2.043 less the 0.105 of `x`.
        ("return_to_go", 1, [-0.5, -0.694, -0.533, -0.511]),
        ("whole", 1, [-0.694] * 4),
    ],
)
def test_advantages_by_hand(name: str, num_kept: int, expected: list[float]) -> None:
    found = paid(name, "advantages", torch.full((1, 4), -0.5), charges_by_hand(num_kept), ETA)
    assert found[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_only_the_policys_tokens_of_the_last_turn_answer() -> None:
    """A call, a tool's two tokens, a turn whose first token was kept, padding; a second row that is all padding."""
    mask = torch.tensor([[1, 0, 0, 1, 1, 1, 0], [0] * 7])
    turn, rewritten = since(torch.tensor([3, 0]), mask), since(torch.tensor([4, 0]), mask)
    assert turn.tolist() == [[0, 0, 0, 1, 1, 1, 0], [0] * 7]
    charged = torch.tensor([[0, 0, 0, 0, -1.0, -2, 0], [0] * 7])
    inputs, own = PenaltyInputs(charged, -charged.sum(-1), turn, rewritten), torch.zeros(2, 7)
    found = {(place, name): paid(name, place, own, inputs, 1.0)[0].tolist() for name, place in PLACES}
    assert found == {
        ("rewards", "return_to_go"): [0, 0, 0, 0, -1, -2, 0],
        ("rewards", "token"): [0, 0, 0, 0, -1, -2, 0],
        ("advantages", "token"): [0, 0, 0, 0, -1, -2, 0],
        ("rewards", "whole"): [0, 0, 0, 0, 0, -3, 0],
        ("rewards", "in_reward"): [0, 0, 0, 0, 0, -3, 0],
        ("advantages", "return_to_go"): [0, 0, 0, 0, -3, -2, 0],
        ("advantages", "whole"): [0, 0, 0, -3, -3, -3, 0],
    }


@pytest.mark.parametrize(
    ("name", "critic_free"),
    [("return_to_go", "advantages"), ("in_reward", "rewards"), ("whole", "advantages"), ("token", "advantages")],
)
def test_a_critic_sees_the_penalty_in_the_rewards(name: str, critic_free: str) -> None:
    assert [CREDITS[name].place(estimator) for estimator in ("grpo", "gae")] == [critic_free, "rewards"]
    assert all(read_constraint({"mode": mode}).penalty is None for mode in ("none", "sft"))


@settings(max_examples=200)
@given(data=st.data(), alignment=st.sampled_from([*ALIGNMENTS]), eta=st.floats(1e-6, 10))
def test_what_holds_for_every_credit(data: st.DataObject, alignment: str, eta: float) -> None:
    row = st.tuples(st.just([]) | TOKENS, TOKENS, TOKENS, st.booleans())
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    starts = torch.tensor([len(earlier) for earlier, *_ in rows])
    pairs = [
        [N] * len(earlier) + (counterparts(alignment, turn, refined) if is_accepted else [N] * len(turn))
        for earlier, turn, refined, is_accepted in rows
    ]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    log_probs = -torch.rand(len(rows), max(len(refined) for _, _, refined, _ in rows), generator=generator) * 9
    mask = padded([[1] * len(pair) for pair in pairs])
    mask *= torch.randint(0, 2, mask.shape, generator=generator)  # tool output
    charged = charge(refine_log_probs=log_probs, counterparts=padded(pairs, N), response_mask=mask)
    turn = since(starts, mask)
    assert (charged <= 0).all() and (charged[turn == 0] == 0).all()
    inputs, before = PenaltyInputs(charged, -charged.sum(-1), turn, turn), torch.randn(mask.shape, generator=generator)
    own = before.clone()
    for name, place in PLACES:
        after = paid(name, place, own, inputs, eta)
        assert torch.equal(own, before), "the estimator's tensor must not change in place"
        assert torch.equal(after[turn == 0], before[turn == 0]) and (after <= before).all()
        assert torch.equal(paid(name, place, own, inputs, 0.0), before)
        for index, (_, response, refined, is_accepted) in enumerate(rows):
            if not is_accepted or (alignment == "diff" and response == refined):
                assert torch.equal(after[index], before[index]), "siblings that are not charged keep what they have"


# ---- eta


def eta_of(**values: object) -> Eta:
    return Eta(read_constraint({"mode": "penalty", "eta": 0.1, "eta_schedule": "adaptive", "delta": 2.0, **values}))


def test_a_constant_eta_follows_nothing() -> None:
    eta = eta_of(eta_schedule="constant")
    eta.observe(9.0)
    assert eta.value == 0.1


def test_dual_steps_by_hand() -> None:
    eta, found = eta_of(), []
    for divergence in (3.0, 0.0, 1e9, math.nan):  # D / delta - 1 is 0.5, -1, and at most 1; the last says nothing
        eta.observe(divergence)
        found.append(math.log(eta.value / 0.1))
    assert found == pytest.approx([0.05, -0.05, 0.05, 0.05])


@pytest.mark.parametrize(("divergence", "bound"), [(0.0, 1e-4), (1e9, 100.0)])
def test_eta_stays_within_a_range(divergence: float, bound: float) -> None:
    eta = eta_of()
    for _ in range(1000):
        eta.observe(divergence)
    assert eta.value == pytest.approx(bound)


@pytest.mark.parametrize("start", [1e-3, 0.1, 5.0])
def test_adaptive_eta_converges_to_the_bound(start: float) -> None:
    """A policy whose D answers to eta with a lag: D moves a fifth of the way to 5 / (1 + 20 eta) in a step."""
    eta, found, divergence = eta_of(eta=start), [], 5.0
    for _ in range(400):
        divergence += 0.2 * (5 / (1 + 20 * eta.value) - divergence)
        eta.observe(divergence)
        found.append(divergence)
    assert found[-50:] == pytest.approx([2.0] * 50, rel=0.02)
    assert eta.value == pytest.approx((5 / 2 - 1) / 20, rel=0.02)


def test_a_checkpoint_holds_the_multiplier_bit_for_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second, file = eta_of(), eta_of(), tmp_path / "global_step_7" / "constraint.json"
    second.load(file)
    assert second.value == 0.1, "a checkpoint of another schedule has none"
    assert caplog.messages == [f"eta starts again at 0.1: there is no {file}"]
    for divergence in (3.1, 0.7, 2.2, 1.9):
        first.observe(divergence)
    first.save(file)
    second.load(file)
    for eta in (first, second):
        eta.observe(2.5)
    assert second.value.hex() == first.value.hex() != (0.1).hex()


# ---- in place

IN_PLACE = InPlacePenalty()


def test_a_turn_is_charged_in_place_by_hand() -> None:
    """Two responses; the second has a first turn and the output of a tool (masked) before the scored one."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]])
    turn = since(torch.tensor([0, 2]), mask)
    reference, own = torch.tensor([[-1.0, -9.0, 5.0], [-1.0, 7.0, -0.5]]), torch.tensor([[-2.0, -0.5, 3.0]] * 2)
    own[1, 2] = -1.5
    charged = IN_PLACE.charge({"refine_in_place": reference, "old_log_probs": own}, turn)
    assert charged.tolist() == [[1.0, -8.5, 0.0], [0.0, 0.0, 1.0]]
    inputs = PenaltyInputs(charged=charged, cost=-charged.sum(-1), turn_mask=turn, rewritten_mask=turn)
    advantages = torch.full((2, 3), 0.25)
    assert paid("token", "advantages", advantages, inputs, 0.5).tolist() == [[0.75, -4.0, 0.25], [0.25, 0.25, 0.75]]
    assert torch.equal(paid("token", "advantages", advantages, inputs, 0.0), advantages), "eta 0: bit for bit"


def test_with_the_bare_prompt_it_is_verls_kl_in_the_reward() -> None:
    """Static KL, verl's estimator k1 (``kl``), in the rewards that a critic sees."""
    generator = torch.Generator().manual_seed(0)
    own, reference, scores = (torch.randn(4, 6, generator=generator) for _ in range(3))
    mask = (torch.arange(6) < torch.tensor([[6], [3], [1], [5]])).long()
    columns = {"response_mask": mask, "token_level_scores": scores, "old_log_probs": own, "ref_log_prob": reference}
    data, _ = apply_kl_penalty(DataProto.from_dict(tensors=columns), core_algos.FixedKLController(0.3), "kl")
    charged = IN_PLACE.charge({"refine_in_place": reference, "old_log_probs": own}, mask)
    inputs = PenaltyInputs(charged=charged, cost=-charged.sum(-1), turn_mask=mask, rewritten_mask=mask)
    torch.testing.assert_close(paid("token", "rewards", scores, inputs, 0.3), data.batch["token_level_rewards"])
