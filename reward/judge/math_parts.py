"""The parts of an answer: its list and brackets, the sides of its equations, an option's letter and text."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from reward.judge.math_forms import ELLIPSIS, form_of, is_numeric, written
from reward.judge.math_latex import Node, Nodes
from reward.judge.math_tree import (
    CLOSED,
    INFINITY,
    OPEN,
    RELATIONS,
    at,
    closing_place,
    depths,
    next_place,
    split,
    without_blanks,
)

_OF_EVENTS = RELATIONS | {"=", "|", "\u2260", "\u2208", "\u222a", "\u2229"}
_LETTERS = frozenset("ABCDEFGHIJ")
_UNREAD = {"'", ELLIPSIS, "lcm", "gcd"}
"""Signs and words that math-verify ignores, or takes for a product or a number (`\\gcd(a,b)` for 1)."""
_WITH_SUBSCRIPT = {"log", "lim", "sum", "prod", "int", "max", "min", "sup", "inf"}
"""The functions that math-verify reads with their subscript."""


class Parts(NamedTuple):
    """The parts of a list, a set, a point or an interval."""

    brackets: str
    """`{}`, `()`, `[]`, `(]`, `[)`; empty: the parts stand in none."""
    parts: list[Nodes]


class Option(NamedTuple):
    """An option with its text, `(B) 12`."""

    letter: str
    text: Nodes


def parts_of(nodes: Nodes) -> Parts:
    """Return the parts that commas separate in an answer, or within the brackets that enclose the whole answer."""
    first, last = at(nodes, 0), at(nodes, len(nodes) - 1)
    is_enclosed = first.kind == last.kind == "sign" and first.text in OPEN and last.text in CLOSED
    if is_enclosed and len(nodes) > 1 and all(depth > 0 for depth in depths(nodes[:-1])):
        inner = list(split(nodes[1:-1], ","))
        if len(inner) > 1 or first.text == "{":
            return Parts(first.text + last.text, inner)
    return Parts("", list(split(nodes, ",")))


def sides_of(nodes: Nodes) -> list[Nodes]:
    """Return the sides of an equation, or of a chain such as `a=b=c`."""
    return list(split(nodes, "="))


def terms_of(nodes: Nodes) -> list[Nodes]:
    """Return the terms of a ratio."""
    return list(split(nodes, ":"))


def has_name(equation: Nodes) -> bool:
    """Return whether the left side of an equation is a name of its value (`x`, `f(x)`, `|AB|`), no sum and no product.

    The absolute value of a variable is none: `|x|=5` has two solutions.
    """
    left = sides_of(equation)[0]
    if any(node.text == "|" for node in left) and any(node.kind == "word" and node.text.islower() for node in left):
        return False
    is_sum = any(node.kind == "sign" and node.text in ("+", "-", "\u00b7") for node, _ in _on_top(left))
    return not is_sum and not any(_is_product(node, behind) for node, behind in _on_top(left))


def is_of_event(equation: Nodes) -> bool:
    r"""Return whether the left side of an equation is a function of a set or a condition, such as `P(A\cup B)`."""
    left = without_blanks(sides_of(equation)[0])
    is_function = at(left, 0).kind == "word" and at(left, 1).text == "(" and closing_place(left, 1) == len(left) - 1
    return is_function and any(node.kind == "sign" and node.text in _OF_EVENTS for node in left)


def _on_top(nodes: Nodes) -> Iterator[tuple[Node, Node]]:
    """Yield what stands in no brackets, and what follows it."""
    for place, (node, depth) in enumerate(zip(nodes, depths(nodes), strict=True)):
        if depth == 0:
            yield node, at(nodes, place + 1)


def _is_product(node: Node, behind: Node) -> bool:
    return node.kind == "word" and node.text.islower() and (len(node.text) > 1 or behind.kind == "word")


def is_number(nodes: Nodes) -> bool:
    """Return whether a side of an equation is a number by itself."""
    return bool(nodes) and all(map(is_numeric, nodes))


def has_ellipsis(nodes: Nodes) -> bool:
    """Return whether parts of a list are left out."""
    return any(node.text == ELLIPSIS for node in nodes)


def unread(nodes: Nodes) -> Counter[str]:
    """Return how often an answer has each sign or word that math-verify does not read."""
    found = Counter(node.text for node in nodes if node.text in _UNREAD and node.kind in ("sign", "command"))
    for place, node in enumerate(nodes):
        before, behind = at(nodes, place - 1), at(nodes, place + 1)
        if node.kind == "down" and before.kind == "command" and not _has_bounds(before):
            found[f"_{written(node.args[0])}"] += 1  # as in `\\sin_1 x`
        is_closed = (
            behind.text == "]" or before.text == "[" or (before.text == "-" and at(nodes, place - 2).text == "[")
        )
        found[node.text] += node.text == INFINITY and is_closed
        for argument in node.args:
            found += unread(argument)
    return +found


def _has_bounds(node: Node) -> bool:
    return node.text in _WITH_SUBSCRIPT or bool(node.args)


def option_of(answer: str) -> Option | None:
    """Return the letter and the text of an answer such as `(B) 12`, `C. Paris` or `D: rain`; None: it is none."""
    nodes = form_of(answer)
    if at(nodes, 0).kind in ("word", "text") and at(nodes, 0).text.casefold() in ("option", "choice", "answer"):
        nodes = nodes[next_place(nodes, 1) :]
    is_in_brackets = at(nodes, 0).text == "(" and at(nodes, 2).text == ")"
    letter = at(nodes, 1 if is_in_brackets else 0)
    behind = 3 if is_in_brackets else 1
    is_letter = letter.kind in ("word", "text") and (letter.text.upper() if is_in_brackets else letter.text) in _LETTERS
    marks = (".", ":") if is_in_brackets else (")", ".", ":")
    is_marked = at(nodes, behind).text in marks and at(nodes, behind).kind == "sign"
    if not is_letter or not (is_marked or is_in_brackets):
        return None
    begin = behind + is_marked
    is_apart = at(nodes, begin).kind == "blank"
    text = nodes[next_place(nodes, begin) :]
    return Option(letter.text.upper(), text) if _is_text(text, is_apart=is_apart) else None


def _is_text(nodes: Nodes, *, is_apart: bool) -> bool:
    first, second = at(nodes, 0), at(nodes, 1)
    if first.kind == "word" and len(first.text) == 1:
        return is_apart and len(nodes) > 1
    if first.kind == "sign":
        is_signed = first.text == "-" and second.kind in ("number", "command", "word")
        is_bracket = first.text in OPEN and is_apart and not (at(nodes, 2).text == ")" and second.text in _LETTERS)
        return is_signed or is_bracket or first.text.isalpha() or first.text in ("$", "\u221e")
    return first.kind in ("number", "command", "word", "text", "rows")


def values_of(parts: list[Nodes]) -> list[Nodes]:
    """Return the right sides of equations that give several letters their values, such as `x=1, y=2`; else none."""
    sides = [sides_of(tuple(node for node in part if node.kind != "blank")) for part in parts]
    letters = {written(side[0]) for side in sides if len(side) == 2 and _is_letter(side[0])}
    return [side[1] for side in sides] if len(letters) == len(parts) > 1 else []


def _is_letter(nodes: Nodes) -> bool:
    return len(nodes) in (1, 2) and nodes[0].kind == "word" and all(node.kind == "down" for node in nodes[1:])
