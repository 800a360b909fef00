"""Places in a tree of LaTeX: brackets, blanks, and what a sign separates."""

from collections.abc import Iterator, Sequence

from reward.judge.math_latex import Node, Nodes

OPEN, CLOSED = "([{", ")]}"
RELATIONS = frozenset("<>\u2264\u2265")
INFINITY = "\u221e"
_NO_NODE = Node("")
_CLOSING = dict(zip(OPEN, CLOSED, strict=True))


def at(nodes: Sequence[Node], place: int) -> Node:
    """Return the node at a place, or one that is nothing."""
    return nodes[place] if 0 <= place < len(nodes) else _NO_NODE


def next_place(nodes: Sequence[Node], place: int) -> int:
    """Return the first place from `place` on at which no blank stands."""
    while at(nodes, place).kind == "blank":
        place += 1
    return place


def is_node(node: Node, kind: str, *texts: str) -> bool:
    """Return whether a node is of a kind, and has one of the texts if there are any."""
    return node.kind == kind and (not texts or node.text in texts)


def without_blanks(nodes: Sequence[Node]) -> Nodes:
    """Return the nodes that are no blanks."""
    return tuple(node for node in nodes if node.kind != "blank")


def closing_place(nodes: Sequence[Node], place: int) -> int | None:
    """Return where the bracket that opens at a place is closed, or None."""
    first = at(nodes, place)
    if first.kind != "sign" or first.text not in _CLOSING:
        return None
    opened = [_CLOSING[first.text]]
    for end in range(place + 1, len(nodes)):
        if nodes[end].kind == "sign" and nodes[end].text == opened[-1]:
            opened.pop()
        elif nodes[end].kind == "sign" and nodes[end].text in _CLOSING:
            opened.append(_CLOSING[nodes[end].text])
        if not opened:
            return end
    return None


def depths(nodes: Sequence[Node]) -> Iterator[int]:
    """Yield how many brackets are open behind each node; an interval may close another one than it opens."""
    depth = 0
    for node in nodes:
        if node.kind == "sign":
            depth += (node.text in OPEN) - (node.text in CLOSED)
        yield depth


def split(nodes: Sequence[Node], sign: str) -> Iterator[Nodes]:
    """Yield what a sign outside brackets separates."""
    begin = 0
    for place, (node, depth) in enumerate(zip(nodes, depths(nodes), strict=True)):
        if depth == 0 and node.kind == "sign" and node.text == sign:
            yield tuple(nodes[begin:place])
            begin = place + 1
    yield tuple(nodes[begin:])


def joined(parts: Sequence[Sequence[Node]], sign: str) -> Iterator[Node]:
    """Yield the nodes of some parts with a sign between each two."""
    for place, part in enumerate(parts):
        if place:
            yield Node("sign", sign)
        yield from part
