r"""Braces on the left of several rows: functions that are given piece by piece, and systems of equations."""

import itertools
from collections.abc import Iterator, Sequence

from reward.judge.math_latex import Node, Nodes
from reward.judge.math_tree import at, closing_place, is_node, joined, next_place, split, without_blanks

_CASES = ("cases", "dcases", "rcases")
_ARRAYS = ("array", "matrix")
_CONDITION = ("if", "for", "when")


def cases(nodes: Sequence[Node]) -> Iterator[Node]:
    """Write rows behind a brace as `cases`, without the commas and words around conditions; a system as a list."""
    is_braced = False
    for place, node in enumerate(nodes):
        if is_node(node, "sign", "{") and closing_place(nodes, place) is None:
            is_braced = is_node(at(nodes, next_place(nodes, place + 1)), "rows", *_ARRAYS)
        elif is_node(node, "rows", *(_ARRAYS if is_braced else ()), *_CASES):
            yield from _without_words(node)
        else:
            yield node


def _without_words(cases: Node) -> Iterator[Node]:
    rows = [tuple(_joined_at_equals([_bare(cell.args[0]) for cell in row])) for row in cases.args]
    is_system = all(len(row) == 1 and len(list(split(row[0], ","))) == 1 for row in rows)
    if is_system and all(any(node.text == "=" for node in row[0]) for row in rows):
        yield from joined([row[0] for row in rows], ",")
    else:
        yield Node("rows", "cases", tuple(tuple(Node("cell", args=(cell,)) for cell in row) for row in rows))


def _joined_at_equals(cells: list[Nodes]) -> Iterator[Nodes]:
    """Yield cells, and `x+y &= 3` as one of them."""
    joins = [bool(cell) and cell[0].text == "=" for cell in cells]
    begins = [place for place, is_joined in enumerate(joins) if place == 0 or not is_joined]
    for begin, end in itertools.pairwise([*begins, len(cells)]):
        yield tuple(itertools.chain(*cells[begin:end]))


def _bare(cell: Nodes) -> Nodes:
    nodes = without_blanks(cell)
    if at(nodes, 0).kind in ("word", "text") and nodes[0].text.casefold() in _CONDITION:
        nodes = nodes[1:]
    while nodes and nodes[-1].kind == "sign" and nodes[-1].text in ",;.":
        nodes = nodes[:-1]
    return nodes


def pieces_of(nodes: Nodes) -> list[tuple[Nodes, ...]]:
    """Return a value and its condition for each piece of a function; an empty list: it is not given piece by piece."""
    nodes = without_blanks(nodes)
    if len(nodes) != 1 or not is_node(nodes[0], "rows", "cases"):
        return []
    rows = [tuple(cell.args[0] for cell in row) for row in nodes[0].args]
    return [tuple(map(_bare, split(row[0], ","))) if len(row) == 1 else row for row in rows]
