"""What a refinement changed, for people to read: lines that stay, and words within the lines that do not."""

import re
from collections.abc import Callable, Sequence

from rapidfuzz.distance import Indel

KEPT, TAKEN_OUT, PUT_IN = 0, -1, 1
Piece = tuple[int, str]
"""KEPT, TAKEN_OUT or PUT_IN, and the text."""
WORD = re.compile(r"\s+|\w+|[^\w\s]")
MIN_SIMILARITY = 0.4
"""Lines that share less of their words are shown as replaced: shreds of chance would not help."""


def pieces(before: str, after: str) -> list[Piece]:
    """Return two texts as one list of pieces: all but those put in make `before`, all but those taken out `after`.

    ``pieces("x - y", "x + y")`` is ``[(0, "x "), (-1, "-"), (1, "+"), (0, " y")]``.
    """
    return _joined(_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), _words))


def _words(before: str, after: str) -> list[Piece]:
    old, new = WORD.findall(before), WORD.findall(after)
    if Indel.normalized_similarity(old, new) < MIN_SIMILARITY:
        return [(TAKEN_OUT, before), (PUT_IN, after)]
    return _diff(old, new, lambda taken_out, put_in: [(TAKEN_OUT, taken_out), (PUT_IN, put_in)])


def _diff(old: Sequence[str], new: Sequence[str], change: Callable[[str, str], list[Piece]]) -> list[Piece]:
    """Compare sequences; what stands between two kept parts is handed to `change` as a whole."""
    found: list[Piece] = []
    i = j = 0
    blocks = [(op.src_start, op.src_end, op.dest_start) for op in Indel.opcodes(old, new) if op.tag == "equal"]
    for start, end, new_start in [*blocks, (len(old), len(old), len(new))]:
        found += change("".join(old[i:start]), "".join(new[j:new_start]))
        found.append((KEPT, "".join(old[start:end])))
        i, j = end, new_start + end - start
    return found


def _joined(parts: list[Piece]) -> list[Piece]:
    """Drop empty pieces, put what was taken out before what was put in, and make one piece of equal neighbours."""
    joined: list[Piece] = []
    for kind, text in parts:
        if joined and joined[-1][0] == kind:
            joined[-1] = (kind, joined[-1][1] + text)
        elif text:
            joined.append((kind, text))
    return joined
