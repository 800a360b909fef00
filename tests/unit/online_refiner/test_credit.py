"""Each credit against numbers worked out by hand (those of docs/constraint.md), and what holds for all of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recipe.online_refiner.alignment import ALIGNMENTS, counterparts, position, times_charged
from recipe.online_refiner.constraint import charge, since
from recipe.online_refiner.credit import CREDITS, MAX_GAP, centred, first_difference
from recipe.online_refiner.groups import Member

ETA = torch.tensor([[0.1]])
# `x - y <eos>` with the refinement `x + y <eos>`; the policy gave `-` 0.7 and gives `+` 0.2.
RESPONSE, REFINED, EOS = [5, 6, 7, 2], [5, 8, 7, 2], 2
LOG_PROBS = [math.log(p) for p in (0.9, 0.2, 0.8, 0.9)]
OLD = [math.log(p) for p in (0.9, 0.7, 0.8, 0.9)]
D = -sum(LOG_PROBS)
GROUP = [Member("u", -0.3, D, 4, 1.0), Member("u", -0.6, None, 3), Member("u", 1.0, None, 0)]


def columns(costs: list[float], num_kept: int = 0) -> dict[str, Tensor]:
    pairs = counterparts(position, [RESPONSE], [REFINED], [True], [0], [num_kept])
    mask, log_probs = torch.ones(1, 4, dtype=torch.long), torch.tensor([LOG_PROBS])
    return {
        **{"turn": mask, "cost": torch.tensor(costs), "responses": torch.tensor([RESPONSE]), "refine_mask": mask},
        **{"refine_charged": charge(refine_log_probs=log_probs, counterparts=pairs, response_mask=mask)},
        **{"refine_ids": torch.tensor([REFINED]), "refine_log_probs": log_probs, "old_log_probs": torch.tensor([OLD])},
        **{"refine_start": torch.tensor([0]), "block": since(torch.tensor([num_kept]), mask)},
    }


@pytest.mark.parametrize(
    ("name", "costs", "expected"),
    [
        ("return_to_go", [2.043, None, None], [-0.704, -0.694, -0.533, -0.511]),
        ("whole", [2.043, None, None], [-0.704] * 4),
        ("in_reward", [0.511, None, None], None),
        ("centred", [1.021, 1.021, -2.043], [-0.602] * 4),
        ("divergence", [2.043, None, None], [-0.5, -0.625, -0.5, -0.5]),
        ("exonerate", [2.043, None, None], [0, -0.5, -0.5, -0.5]),
        ("routed", [2.043, None, None], [0] * 4),
        ("silent", [0, 0, 0], [0] * 4),
        # -0.3, -0.6, 1 and the refinement's 1: mean 0.275, deviation 0.846.
        ("members", [-0.680, -1.034, 0.857], [-0.680] * 4),
    ],
)
def test_advantages_by_hand(name: str, costs: list[float | None], expected: list[float] | None) -> None:
    credit = CREDITS[name]
    assert credit.costs(GROUP) == [None if cost is None else pytest.approx(cost, abs=1e-3) for cost in costs]
    if expected is None:
        assert credit.advantages is None
        return
    assert credit.advantages is not None
    found = credit.advantages(torch.full((1, 4), -0.5), columns(credit.costs(GROUP)[:1]), ETA)
    assert found[0].tolist() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("return_to_go", [-0.011, -0.161, -0.022, -0.311]),
        ("whole", [0, 0, 0, -0.504]),
        ("in_reward", [0, 0, 0, -0.351]),
    ],
)
def test_rewards_by_hand(name: str, expected: list[float]) -> None:
    credit = CREDITS[name]
    assert credit.rewards is not None
    found = credit.rewards(torch.tensor([[0, 0, 0, -0.3]]), columns(credit.costs(GROUP)[:1]), ETA)
    assert found[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_failures_that_nobody_mends_are_no_cheaper() -> None:
    solved, failed, better = Member("u", 1.0, None, 0), Member("u", -1.0, None, 0), Member("u", 0.5, None, 2)
    charged = [Member("u", 0.2, 4.0, 2), Member("u", -0.3, 1.0, 2)]
    other = [Member("v", 0.0, None, 0), Member("v", -1.0, None, 0), Member("w", -1.0, 3.0, 1)]
    # D' = 4, 1, 0, 4, 0, 4: what is better than all that is charged costs nothing; group v has nothing to charge, and
    # in w nobody is left to compare with.
    costs = centred([*charged, solved, failed, better, Member("u", 0.2, None, 2), *other])
    assert costs[:6] == pytest.approx([4 - 9 / 5, 1 - 12 / 5, -13 / 5, 4 - 9 / 5, -13 / 5, 4 - 9 / 5])
    assert costs[6:] == [None, None, 3]


def test_a_gap_counts_up_to_a_limit_and_only_where_the_policy_prefers_its_own_token() -> None:
    data = columns([D])
    for log_prob, expected in ((-100.0, -ETA.item() * MAX_GAP), (-0.01, 0.0)):
        data["refine_log_probs"][0, 1] = log_prob
        assert CREDITS["divergence"].advantages is not None
        assert CREDITS["divergence"].advantages(torch.zeros(1, 4), data, ETA)[0, 1].item() == pytest.approx(expected)


@pytest.mark.parametrize("log_prob", [-1.0, -3.0])
def test_good_news_are_not_exonerated(log_prob: float) -> None:
    assert CREDITS["exonerate"].advantages is not None
    assert CREDITS["exonerate"].advantages(torch.full((1, 4), 0.5), columns([D]), ETA).tolist() == [[0.5] * 4]


@pytest.mark.parametrize(
    ("name", "expected"), [("return_to_go", [-0.5, -0.694, -0.533, -0.511]), ("whole", [-0.694] * 4)]
)
def test_what_the_refiner_was_made_to_keep_is_not_charged(name: str, expected: list[float]) -> None:
    """With `x` kept, D is that of the block behind it: 2.043 less the 0.105 of `x`."""
    data = columns([D + LOG_PROBS[0]], num_kept=1)
    assert data["refine_charged"].sum().item() == pytest.approx(-1.938, abs=1e-3)
    change = CREDITS[name].advantages
    assert change is not None
    assert change(torch.full((1, 4), -0.5), data, ETA)[0].tolist() == pytest.approx(expected, abs=1e-3)


TOKENS = st.lists(st.integers(3, 5), max_size=6).map(lambda ids: [*ids, EOS])
ROWS = st.lists(st.tuples(TOKENS | st.just([]), TOKENS, TOKENS), min_size=1, max_size=4)


def padded(rows: list[list[int]]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def drawn(rows: list[tuple[list[int], list[int], list[int]]], alignment: str = "position") -> dict[str, Tensor]:
    """Return the columns of rows of (session before the turn, a, a'), with random log-probs."""
    earlier, turns, refined = (list(column) for column in zip(*rows, strict=True))
    responses, starts = [a + b for a, b in zip(earlier, turns, strict=True)], torch.tensor([len(a) for a in earlier])
    mask, generator = padded([[1] * len(row) for row in responses]), torch.Generator().manual_seed(len(rows))
    log_probs = -torch.rand(padded(refined).shape, generator=generator) * 9
    pairs = counterparts(
        ALIGNMENTS[alignment], responses, refined, [True] * len(rows), starts.tolist(), [0] * len(rows)
    )
    charged = charge(refine_log_probs=log_probs, counterparts=pairs, response_mask=mask)
    return {
        **{"turn": since(starts, mask), "block": since(starts, mask)},
        **{"refine_charged": charged, "cost": -charged.sum(-1), "refine_start": starts},
        **{"responses": padded(responses), "refine_ids": padded(refined), "refine_log_probs": log_probs},
        "refine_mask": padded([[1] * len(row) for row in refined]),
        "old_log_probs": -torch.rand(mask.shape, generator=generator) * 9,
    }


@settings(max_examples=50)
@given(rows=ROWS, name=st.sampled_from(sorted(CREDITS)), eta=st.floats(1e-6, 10))
def test_what_holds_for_every_credit(rows: list, name: str, eta: float) -> None:
    data = drawn(rows)
    before = torch.randn(data["turn"].shape, generator=torch.Generator().manual_seed(1))
    own, weight = before.clone(), torch.full((len(rows), 1), eta)
    for change in (CREDITS[name].advantages, CREDITS[name].rewards):
        if change is not None:
            assert torch.equal(change(own, data, 0 * weight), before), "eta 0 changes nothing"
            after = change(own, data, weight)
            assert torch.equal(after[data["turn"] == 0], before[data["turn"] == 0]), "other tokens are not touched"
            assert torch.equal(own, before), "the estimator's tensor must not change in place"
            free = change(own, {**data, "cost": torch.zeros(len(rows))}, weight)
            if name in ("whole", "in_reward", "centred"):
                assert torch.equal(free, before), "what costs nothing is not charged"


@given(
    members=st.lists(
        st.tuples(st.sampled_from("uvw"), st.floats(-1, 1), st.none() | st.floats(0, 50), st.integers(0, 9)),
        max_size=9,
    ).map(lambda rows: [Member(*row, None if row[2] is None else 1.0) for row in rows]),
    name=st.sampled_from(sorted(CREDITS)),
)
def test_who_pays(members: list[Member], name: str) -> None:
    costs = CREDITS[name].costs(members)
    for group in "uvw":
        of_group = [(one, cost) for one, cost in zip(members, costs, strict=True) if one.group == group]
        if name in ("centred", "members", "silent"):
            assert len({cost is None for _, cost in of_group}) <= 1, "a group changes as a whole"
        else:
            assert all(cost is None for one, cost in of_group if one.divergence is None), "siblings are left alone"
        if name == "centred" and len(of_group) > 1:
            assert sum(cost or 0.0 for _, cost in of_group) == pytest.approx(0, abs=1e-6)
        if name != "silent" and all(one.divergence is None for one, _ in of_group):
            assert all(cost is None for _, cost in of_group), "without a refinement nothing changes"


@given(rows=ROWS)
def test_the_first_difference(rows: list) -> None:
    data = drawn(rows)
    before, first, gap = first_difference(data)
    for row, (earlier, turn, refined) in enumerate(rows):
        both = min(len(turn), len(refined))
        at = next((t for t in range(both) if turn[t] != refined[t]), both)
        start = len(earlier)
        assert before[row].nonzero().flatten().tolist() == list(range(start, start + at))
        assert first[row].nonzero().flatten().tolist() == ([start + at] if at < both else [])
        if at < both:
            expected = data["refine_log_probs"][row, at] - data["old_log_probs"][row, start + at]
            assert gap[row, start + at] == expected


@given(rows=ROWS, alignment=st.sampled_from(sorted(ALIGNMENTS)))
def test_weights_of_a_refinement_are_the_gradient_of_its_charge(rows: list, alignment: str) -> None:
    data = drawn(rows, alignment)
    for row, (_, turn, refined) in enumerate(rows):
        weights = torch.tensor(times_charged(ALIGNMENTS[alignment](turn, refined), len(refined)))
        total = (weights * data["refine_log_probs"][row, : len(refined)]).sum()
        assert total.item() == pytest.approx(data["refine_charged"][row].sum().item(), abs=1e-4)
