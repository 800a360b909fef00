"""What a refinement changed, for people to read: the words that were taken out and put in."""

import re

from rapidfuzz.distance import Indel

KEPT, TAKEN_OUT, PUT_IN = 0, -1, 1
Piece = tuple[int, str]
"""KEPT, TAKEN_OUT or PUT_IN, and the text."""
KINDS = {"equal": KEPT, "delete": TAKEN_OUT, "insert": PUT_IN}
WORD = re.compile(r"\s+|\w+|[^\w\s]")
MIN_SIMILARITY = 0.4
"""Texts that share less of their words are shown as replaced: the shreds they share by chance would not help."""


def pieces(before: str, after: str) -> list[Piece]:
    """Return two texts as one list of pieces: all but those put in make `before`, all but those taken out `after`.

    ``pieces("x - y", "x + y")`` is ``[(0, "x "), (-1, "-"), (1, "+"), (0, " y")]``.
    """
    old, new = WORD.findall(before), WORD.findall(after)
    if Indel.normalized_similarity(old, new) < MIN_SIMILARITY:
        return [(kind, text) for kind, text in ((TAKEN_OUT, before), (PUT_IN, after)) if text]
    return [
        (
            KINDS[op.tag],
            "".join(new[op.dest_start : op.dest_end] if op.tag == "insert" else old[op.src_start : op.src_end]),
        )
        for op in Indel.opcodes(old, new)
    ]
