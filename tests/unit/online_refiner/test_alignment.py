"""Which token of a' a token of a is charged for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.online_refiner.alignment import (
    ALIGNMENTS,
    NONE,
    counterparts,
    diff,
    edited_tokens,
    known_weights,
    position,
)
from recipe.online_refiner.blocks import ConstraintConfig
from recipe.online_refiner.constraint import charge, since
from recipe.online_refiner.credit import return_to_go, token_penalty

EOS = 0
TOKENS = st.lists(st.integers(1, 4), max_size=8).map(lambda ids: [*ids, EOS])
N = NONE


@pytest.mark.parametrize(
    ("response", "refined", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [0, 1, 2]),
        ([1, 2, 3], [4], [0, N, N]),
        ([1], [4, 5, 6], [0]),
        ([1, 2], [EOS], [0, N]),
    ],
)
def test_position(response: list[int], refined: list[int], expected: list[int]) -> None:
    assert position(response, refined) == expected


@pytest.mark.parametrize(
    ("response", "refined", "expected", "edited"),
    [
        # identical
        ([1, 2, EOS], [1, 2, EOS], [N, N, N], [0, 0, 0]),
        # replaced: start, middle, end; one token by two, two by one
        ([9, 2, 3, EOS], [1, 2, 3, EOS], [0, N, N, N], [1, 0, 0, 0]),
        ([1, 9, 3, EOS], [1, 2, 3, EOS], [N, 1, N, N], [0, 1, 0, 0]),
        ([1, 2, 9, EOS], [1, 2, 3, EOS], [N, N, 2, N], [0, 0, 1, 0]),
        ([1, 2, 3], [1, 2, EOS], [N, N, 2], [0, 0, 1]),
        # deleted: start, middle, end
        ([9, 1, 2, EOS], [1, 2, EOS], [0, N, N, N], [0, 0, 0]),
        ([1, 9, 9, 2, EOS], [1, 2, EOS], [N, 1, 1, N, N], [0, 0, 0]),
        ([1, 2, 9, EOS], [1, 2, EOS], [N, N, 2, N], [0, 0, 0]),
        # deleted behind the end of a', of which nothing follows: its last token stands in
        ([1, EOS, 9, 9], [1, EOS], [N, N, 1, 1], [0, 0]),
        # inserted: start, middle, end
        ([1, 2, EOS], [9, 1, 2, EOS], [N, N, N], [1, 0, 0, 0]),
        ([1, 2, EOS], [1, 9, 2, EOS], [N, N, N], [0, 1, 0, 0]),
        ([1, 2, EOS], [1, 2, 9, EOS], [N, N, N], [0, 0, 1, 0]),
        # only EOS is left
        ([7, 8, EOS], [EOS], [0, 0, N], [0]),
    ],
)
def test_diff(response: list[int], refined: list[int], expected: list[int], edited: list[int]) -> None:
    assert diff(response, refined) == expected
    assert edited_tokens(response, refined) == [bool(flag) for flag in edited]


def test_a_batch_is_padded_and_rejected_rows_are_left_out() -> None:
    accepted = [True, False, True]
    found = counterparts(position, [[1, 2, 3], [1], [1, 2]], [[5, 5], [5, 5], [5]], accepted, [0] * 3, [0] * 3)
    assert found.tolist() == [[0, 1, N], [N, N, N], [0, N, N]]


def test_what_the_refiner_was_made_to_keep_is_neither_charged_nor_imitated() -> None:
    turn, refined = [1, 7, 7, EOS], [1, 8, EOS]
    assert counterparts(position, [[9, *turn]], [refined], [True], [1], [1]).tolist() == [[N, N, 1, 2, N]]
    for name in ("uniform", "edited", "charged"):
        constraint = ConstraintConfig(mode="sft", token_weights=name)
        assert known_weights(constraint, turn, refined, 1) == [0.0, *known_weights(constraint, turn, refined)[1:]]


@given(response=TOKENS, refined=TOKENS)
def test_diff_charges_exactly_what_the_edit_removed(response: list[int], refined: list[int]) -> None:
    pairs = diff(response, refined)
    kept = [token for token, pair in zip(response, pairs, strict=True) if pair == NONE]
    repeated = [token for token, edited in zip(refined, edited_tokens(response, refined), strict=True) if not edited]
    assert kept == repeated, "what is neither charged nor edited is common to both"
    assert all(NONE <= pair < len(refined) for pair in pairs)


@settings(max_examples=200)
@given(data=st.data(), alignment=st.sampled_from(sorted(ALIGNMENTS)), eta=st.floats(1e-6, 10))
def test_invariants_of_the_penalty(data: st.DataObject, alignment: str, eta: float) -> None:
    rows = data.draw(st.lists(st.tuples(TOKENS, TOKENS, TOKENS, st.booleans()), min_size=1, max_size=4))
    earlier, turns, refinements, accepted = (list(column) for column in zip(*rows, strict=True))
    responses, starts = [a + b for a, b in zip(earlier, turns, strict=True)], list(map(len, earlier))
    pairs = counterparts(ALIGNMENTS[alignment], responses, refinements, accepted, starts, [0] * len(rows))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    log_probs = -torch.rand(len(rows), max(map(len, refinements)), generator=generator) * 9
    mask = torch.tensor([[int(t < len(row)) for t in range(pairs.shape[1])] for row in responses])
    mask *= torch.randint(0, 2, mask.shape, generator=generator)  # tool output
    charged = charge(refine_log_probs=log_probs, counterparts=pairs, response_mask=mask)
    weight = torch.full((len(rows), 1), eta)
    penalty = token_penalty(charged, weight)
    assert (penalty <= 0).all()
    assert (penalty[mask == 0] == 0).all()
    turn = since(torch.tensor(starts), mask)
    assert (penalty[turn == 0] == 0).all()
    before = torch.randn(mask.shape, generator=generator) * mask
    after = return_to_go(before, {"refine_charged": charged, "block": turn}, weight)
    for row, keep in enumerate(accepted):
        identical = turns[row] == refinements[row] and alignment == "diff"
        if not keep or identical:
            assert torch.equal(after[row], before[row]), "what is not charged keeps the estimator's advantages"
    assert torch.equal(after[turn == 0], before[turn == 0])
