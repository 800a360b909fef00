r"""Rewrites of a whole answer by its meaning: bounds without end, letters of integers, `\pm` in a point, degrees."""

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from reward.judge.math_latex import Node, Nodes
from reward.judge.math_tree import INFINITY, RELATIONS, at, closing_place, is_node, joined, split, without_blanks

_BEGINS = ("-\u221e<", "\u221e>", "+\u221e>")
_ENDS = ("<\u221e", "<+\u221e", ">-\u221e")
_IN = "\u2208"
_INTEGERS = (r"\mathbb{Z}", r"\mathbb{N}", "Z", "N")
_INTEGER = "k"
_BEFORE_DOMAIN = ("where", "for", "with", "for all", "for any", "for every")
_ARC = re.compile(r"(\d+)\u00b0(\d+(?:\.\d+)?)'(?:(\d+(?:\.\d+)?)(?:''|\"))?")
_SIGNS = {"\u00b1": ("-", "+"), "\u2213": ("+", "-")}
_ANGLE_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc")


def bounded(nodes: Sequence[Node]) -> Iterator[Node]:
    r"""Write conditions without an infinite end: `x<4` for `-\infty<x<4`."""
    condition: list[Node] = []
    for node in (*nodes, Node("")):
        is_end = node.text == "," or is_node(node, "text", "or") or not node.kind
        if not is_end:
            condition.append(node)
            continue
        yield from _bounded(condition)
        condition = []
        if node.kind:
            yield node


def _bounded(condition: list[Node]) -> Sequence[Node]:
    bare = without_blanks(condition)
    text = "".join(node.text for node in bare)
    begin, end = text.startswith(_BEGINS), text.endswith(_ENDS)
    if sum(node.text in RELATIONS for node in bare) != 2 or text.count(INFINITY) != begin + end:
        return condition
    if begin and end:
        return (Node("sign", r"\mathbb{R}"),)
    places = [place for place, node in enumerate(bare) if node.text in RELATIONS]
    return bare[places[0] + 1 if begin else 0 : places[1] if end else len(bare)]


def domains(nodes: Sequence[Node]) -> Iterator[Node]:
    r"""Write `\pi n\ (n\in\mathbb{Z})` and `\pi n\text{ where }n\in\mathbb{Z}` as `\pi k, k\in\mathbb{Z}`."""
    bare = without_blanks(nodes)
    place = next((place for place in range(1, len(bare)) if _is_domain(bare[place : place + 3])), 0)
    if not place:
        yield from nodes
        return
    letter, formula, behind = bare[place].text, bare[:place], bare[place + 3 :]
    if formula[-1].text == "(" and at(behind, 0).text == ")":
        formula, behind = formula[:-1], behind[1:]
    if formula and formula[-1].kind in ("word", "text") and formula[-1].text in _BEFORE_DOMAIN:
        formula = formula[:-1]
    formula = formula[:-1] if formula and formula[-1].text == "," else formula
    whole = (*formula, Node("sign", ","), *bare[place : place + 3], *behind)
    yield from whole if _uses(whole, _INTEGER) else _renamed(whole, letter)


def _is_domain(nodes: Nodes) -> bool:
    return (
        len(nodes) == 3
        and nodes[0].kind == "word"
        and len(nodes[0].text) == 1
        and nodes[1].text == _IN
        and nodes[2].text in _INTEGERS
    )


def _uses(nodes: Nodes, letter: str) -> bool:
    return any(
        (node.kind == "word" and letter in node.text) or any(_uses(part, letter) for part in node.args)
        for node in nodes
    )


def _renamed(nodes: Nodes, letter: str) -> Nodes:
    """Return nodes with the letter of an integer, alone or in a product of two, as every integer is called."""

    def rename(node: Node) -> Node:
        is_product = node.kind == "word" and len(node.text) <= 2
        return node._replace(text=node.text.replace(letter, _INTEGER)) if is_product else node

    return _changed(nodes, rename)


def _changed(nodes: Nodes, change: Callable[[Node], Node]) -> Nodes:
    return tuple(
        change(node._replace(args=tuple(_changed(part, change) for part in node.args)) if node.args else node)
        for node in nodes
    )


def points(nodes: Sequence[Node]) -> Iterator[Node]:
    r"""Write a point with one sign of two values, `(\pm 3,0)`, as two points."""
    both: list[Nodes] = []
    for part in split(nodes, ","):
        bare = without_blanks(part)
        is_enclosed = at(bare, 0).text == "(" and closing_place(bare, 0) == len(bare) - 1
        is_point = is_enclosed and len(list(split(bare[1:-1], ","))) > 1
        if is_point and _num_signs(bare) == 1:
            both += [_with_sign(bare, side) for side in (0, 1)]
        else:
            both.append(part)
    yield from joined(both, ",")


def _num_signs(nodes: Nodes) -> int:
    return sum((node.text in _SIGNS) + sum(map(_num_signs, node.args)) for node in nodes)


def _with_sign(nodes: Nodes, side: int) -> Nodes:
    return _changed(nodes, lambda node: node._replace(text=_SIGNS[node.text][side]) if node.text in _SIGNS else node)


def arcs(nodes: Sequence[Node]) -> Iterator[Node]:
    r"""Write degrees, minutes and seconds, `27^\circ 30'`, as degrees."""
    texts = [node.text for node in nodes]
    bare = without_blanks(nodes) if "\u00b0" in texts and "'" in texts else ()
    found = _ARC.fullmatch("".join(node.text for node in bare))
    if found is None:
        yield from nodes
        return
    degrees, minutes, seconds = (Fraction(part or 0) for part in found.groups())
    value = degrees + minutes / 60 + seconds / 3600
    yield Node("command", "frac", tuple((Node("number", str(one)),) for one in value.as_integer_ratio()))
    yield Node("sign", "\u00b0")


def angles(nodes: Sequence[Node]) -> Sequence[Node]:
    r"""Write degrees beside a function of an angle in radians: `\cos\frac{36\pi}{180}` for `\cos 36^\circ`."""
    return _in_radians(tuple(nodes)) if _has_angle_function(nodes) else nodes


def _has_angle_function(nodes: Sequence[Node]) -> bool:
    return any(
        is_node(node, "command", *_ANGLE_FUNCTIONS) or any(map(_has_angle_function, node.args)) for node in nodes
    )


def _in_radians(nodes: Nodes) -> Nodes:
    found: list[Node] = []
    for node in nodes:
        inner = node._replace(args=tuple(map(_in_radians, node.args))) if node.args else node
        if is_node(node, "sign", "\u00b0") and found and found[-1].kind == "number":
            inner = Node("command", "frac", ((found.pop(), Node("sign", "\u03c0")), (Node("number", "180"),)))
        found.append(inner)
    return tuple(found)
