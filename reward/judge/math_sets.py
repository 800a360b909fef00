r"""Conditions as the sets that they describe: `x<1 or x>3`, `x>2, x\neq 5`, `-\infty<x<4`, and `k\in\mathbb{Z}`."""

from typing import NamedTuple

from reward.judge.math_forms import written
from reward.judge.math_latex import Node, Nodes
from reward.judge.math_parts import is_number
from reward.judge.math_tree import RELATIONS, split, without_blanks

_FLIPPED = {">": "<", "\u2265": "\u2264", "<": ">", "\u2264": "\u2265"}
_UNEQUAL = "\u2260"


class Condition(NamedTuple):
    """The numbers for which a condition holds."""

    letter: str
    numbers: str
    """The set in LaTeX, such as `(2, \\infty)`."""


def union_of(nodes: Nodes) -> Condition | None:
    r"""Return the numbers for which `x<1 or x>3` or `x>2, x\neq 5` holds; None: it is no such answer."""
    alternatives: list[list[Node]] = [[]]
    for node in without_blanks(nodes):
        if node.kind == "text" and node.text == "or":
            alternatives.append([])
        else:
            alternatives[-1].append(node)
    found = [_condition(alternative) for alternative in alternatives]
    letters = {one.letter for one in found if one}
    is_one = len(alternatives) == 1 and not any(node.text == _UNEQUAL for node in nodes)
    if is_one or not all(found) or len(letters) != 1:
        return None
    return Condition(letters.pop(), r"\cup ".join(one.numbers for one in found if one))


def _condition(nodes: list[Node]) -> Condition | None:
    r"""Return the numbers for which a relation holds, and the ones beside it such as `x\neq 5` hold, too."""
    parts = list(split(nodes, ","))
    excluded = [_excluded(part) for part in parts]
    for place, part in enumerate(parts[1:], 1):  # `x\neq 0, 1`
        before = excluded[place - 1]
        if before and is_number(part):
            excluded[place] = Condition(before.letter, written(part))
    intervals = [_interval(part) for part, one in zip(parts, excluded, strict=True) if one is None]
    known = [one for one in (*excluded, *intervals) if one]
    letters = {one.letter for one in known}
    if len(intervals) > 1 or None in intervals or len(letters) != 1:
        return None
    numbers = intervals[0].numbers if intervals and intervals[0] else r"(-\infty, \infty)"
    missing = ", ".join(one.numbers for one in excluded if one)
    return Condition(letters.pop(), rf"{numbers}\setminus\{{{missing}\}}" if missing else numbers)


def _excluded(nodes: Nodes) -> Condition | None:
    r"""Return the letter and the number of `x\neq 5`."""
    sides = list(split(nodes, _UNEQUAL))
    if len(sides) != 2 or not written(sides[0]).isalpha() or not is_number(sides[1]):
        return None
    return Condition(written(sides[0]), written(sides[1]))


def _interval(condition: Nodes) -> Condition | None:
    """Return the letter and the numbers of a condition such as `x<1`, `0<x<1` or `x=2`."""
    equal = [written(side) for side in split(condition, "=")]
    if len(equal) == 2 and equal[0].isalpha():
        return Condition(equal[0], rf"\{{{equal[1]}\}}")
    places = [place for place, node in enumerate(condition) if node.text in RELATIONS]
    bounds = [0, *(place + 1 for place in places), len(condition) + 1]
    sides = [written(condition[begin : end - 1]) for begin, end in zip(bounds, bounds[1:], strict=False)]
    signs = [condition[place].text for place in places]
    if all(sign in _FLIPPED for sign in signs) and signs and signs[0] in ">\u2265":
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    if any(sign not in "<\u2264" for sign in signs):
        return None
    match sides:
        case [low, letter] if letter.isalpha():
            return Condition(letter, f"{'(['[signs[0] != '<']}{low}, \\infty)")
        case [letter, high] if letter.isalpha():
            return Condition(letter, f"(-\\infty, {high}{')]'[signs[0] != '<']}")
        case [low, letter, high] if letter.isalpha():
            return Condition(letter, f"{'(['[signs[0] != '<']}{low}, {high}{')]'[signs[1] != '<']}")
    return None
