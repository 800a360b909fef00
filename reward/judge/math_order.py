r"""Order does not matter in `\gcd(b,a)` and `B\cup A`, and it does in names such as `\angle ABC`."""

from collections import Counter
from collections.abc import Iterator, Sequence

from reward.judge.math_latex import Node, Nodes
from reward.judge.math_tree import CLOSED, OPEN, at, closing_place, depths, is_node, joined, next_place, split
from reward.judge.math_tree import without_blanks as _bare

_OF_SEVERAL = ("min", "max", "gcd", "lcm")
_SYMMETRIC = frozenset("\u222a\u2229\u2227\u2228\u2295\u2260\u2245\u223c\u2225\u22a5\u27fa\u2194")
"""Signs whose operands may change places: of sets, statements, and relations such as `\\parallel` and `\\neq`."""
_TIGHT = frozenset("+-\u00b7*/'\u00b0|!%\u00ac\u221e\u2220\u25b3\u2205" + OPEN + CLOSED)
"""Signs that bind what is beside them before those of _SYMMETRIC do."""
_LARGE_BASES = frozenset(map(str, range(11, 37)))


def several(nodes: Sequence[Node]) -> Iterator[Node]:
    r"""Write the arguments of `\max\{b,a\}` in round brackets and in one order."""
    place = 0
    while place < len(nodes):
        node, begin = nodes[place], next_place(nodes, place + 1)
        end = closing_place(nodes, begin) if is_node(node, "command", *_OF_SEVERAL) else None
        yield node
        place += 1
        if end is not None and nodes[begin].text in ("(", "{"):
            arguments = [tuple(several(argument)) for argument in split(nodes[begin + 1 : end], ",")]
            yield from (Node("sign", "("), *joined(sorted(arguments, key=_rank), ","), Node("sign", ")"))
            place = end + 1


def symmetric(nodes: Sequence[Node]) -> Iterator[Node]:
    r"""Write the operands of `B\cup A` and `2\neq x` in one order, where no other sign stands between them."""
    yield from joined([tuple(_sorted(part)) for part in split(nodes, ",")], ",")


def _sorted(part: Nodes) -> Iterator[Node]:
    on_top = [node for node, depth in zip(part, depths(part), strict=True) if depth == 0 and node.kind != "blank"]
    signs = {node.text for node in on_top if node.kind == "sign" and not node.text.isalpha()} - _TIGHT
    operands = [_bare(operand) for operand in split(part, min(signs))] if len(signs) == 1 else []
    is_of_words = any(node.kind == "text" for node in on_top)
    if signs <= _SYMMETRIC and operands and all(operands) and not is_of_words:
        yield from joined(sorted(operands, key=_rank), min(signs))
    else:
        yield from part


def _rank(nodes: Sequence[Node]) -> tuple[bool, Nodes]:
    r"""Return what puts letters first: math-verify reads `x \neq 2`."""
    bare = _bare(nodes)
    return at(bare, 0).kind != "word", bare


def numerals(nodes: Sequence[Node]) -> Iterator[Node]:
    """Write the letters of a numeral whose base is above ten, `2a7_{16}`, in upper case."""
    found = list(nodes)
    for place in range(len(found)):
        begin, end = _numeral(found, place)
        found[begin:end] = [node._replace(text=node.text.upper()) for node in found[begin:end]]
    yield from found


def _numeral(nodes: Sequence[Node], place: int) -> tuple[int, int]:
    """Return where the numeral begins and ends whose base, of more than ten digits, is the subscript at a place."""
    node = at(nodes, place)
    base = node.args[0][0].text if node.kind == "down" and len(node.args[0]) == 1 else ""
    end = place
    while end and (nodes[end - 1].kind == "blank" or nodes[end - 1].text == ")"):
        end -= 1
    begin = end
    while begin and nodes[begin - 1].kind in ("number", "word"):
        begin -= 1
    text = "".join(digit.text for digit in nodes[begin:end])
    is_numeral = base in _LARGE_BASES and text.isascii() and text.isalnum() and any(map(str.isdigit, text))
    return (begin, end) if is_numeral and all(int(digit, 36) < int(base) for digit in text) else (place, place)


def names_in(nodes: Nodes) -> Counter[str]:
    r"""Return the names whose letters have an order, unlike the factors of a product: `\angle ABC`, `ABCD`, `2A7_{16}`.

    An angle may be read from either of its ends, and a triangle has its points in any order.
    """
    names: Counter[str] = Counter()
    before = Node("")
    for place, node in enumerate(nodes):
        begin, end = _numeral(nodes, place)
        names["".join(digit.text for digit in nodes[begin:end])] += begin < end
        if node.kind == "word" and len(node.text) > 2 and node.text.isupper():
            names[_name(node.text, before.text)] += 1
        for argument in node.args:
            names += names_in(argument)
        before = before if node.kind == "blank" else node
    return +names


def _name(points: str, figure: str) -> str:
    match figure:
        case "\u2220":
            return min(points, points[::-1])
        case "\u25b3":
            return "".join(sorted(points))
    return points
