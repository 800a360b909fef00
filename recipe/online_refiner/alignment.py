"""Which token of a refinement a' stands for which of the response a: from token ids to positions and weights."""

from collections.abc import Callable, Sequence

import torch
from rapidfuzz.distance import Levenshtein

from recipe.online_refiner.blocks import ConstraintConfig

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


Alignment = Callable[[Sequence[int], Sequence[int]], list[int]]
ALIGNMENTS: dict[str, Alignment] = {"position": position, "diff": diff}


def counterparts(
    align: Alignment,
    responses: list[list[int]],
    refinements: list[list[int]],
    accepted: list[bool],
    starts: list[int],
    kept: list[int],
) -> torch.Tensor:
    """Align a batch: the input of :func:`recipe.online_refiner.constraint.charge`.

    Args:
        align: One of ALIGNMENTS.
        responses: (B,) token ids of a.
        refinements: (B,) token ids of a'.
        accepted: (B,) whether the reward gate let the pair through.
        starts: (B,) where in the response the turn begins that was refined: a begins there.
        kept: (B,) with how many tokens of a the refiner's answer was begun: they are not charged.

    Returns:
        (B, longest response) int64; NONE in rows that were not accepted, before what was refined, and in the padding.
    """
    pairs = torch.full((len(responses), max(map(len, responses))), NONE)
    rows = zip(responses, refinements, accepted, starts, kept, strict=True)
    for row, (response, refined, is_accepted, start, num_kept) in enumerate(rows):
        if is_accepted:
            pairs[row, start + num_kept : len(response)] = torch.tensor(align(response[start:], refined)[num_kept:])
    return pairs


def edited_tokens(response_ids: Sequence[int], refined_ids: Sequence[int]) -> list[bool]:
    """Return for each token of a' whether the shortest edit from a to a' wrote it, (len a',)."""
    edited = [False] * len(refined_ids)
    for edit in Levenshtein.editops(response_ids, refined_ids):
        if edit.tag != "delete":
            edited[edit.dest_pos] = True
    return edited


def times_charged(pairs: Sequence[int], num_refined: int) -> list[float]:
    """Return for each token of a' how many tokens of a are charged for it, (len a',): its weight in D."""
    counts = [0.0] * num_refined
    for pair in pairs:
        if pair != NONE:
            counts[pair] += 1
    return counts


def known_weights(
    constraint: ConstraintConfig, response_ids: Sequence[int], refined_ids: Sequence[int], num_kept: int = 0
) -> list[float]:
    """Return what ``constraint.token_weights`` says of the tokens of a' before the update, (len a',).

    Those that the refiner's answer was begun with weigh nothing: the policy wrote them.
    """
    name = constraint.chosen("token_weights")
    weights = [1.0] * len(refined_ids)
    if name == "edited":
        weights = [1.0 if edited else constraint.kept_weight for edited in edited_tokens(response_ids, refined_ids)]
    elif name == "charged":
        weights = times_charged(ALIGNMENTS[constraint.alignment](response_ids, refined_ids), len(refined_ids))
    return [0.0] * num_kept + weights[num_kept:]
