r"""The form of a whole answer: the text around it, the joints of its list, its unit; and its text in LaTeX."""

import functools
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction

from reward.judge.math_latex import Node, Nodes, library
from reward.judge.math_notation import notation_of
from reward.judge.math_tree import RELATIONS, at, closing_place, next_place
from reward.judge.math_whole import angles, arcs, bounded, domains, points

ELLIPSIS = "\u2026"
_UNIT = r"(?:of|in|[cmkn]m|[mkµμ]g|lbs?|oz|ft|yd|mi|hrs?|mph|kmh|kph|ml|sq|[ap]m|usd|eur|gbp|jpy|inr|deg|rad|pa|hz|kj"
_UNIT += (
    r"|k[pw]a?h?|khz|ms|(?=[a-z]{3})[a-z]+?[aeiou][a-z]*|[aeiou][a-z]{2,}s)"  # no product of variables such as `abc`
)
_IS_UNIT = re.compile(_UNIT, re.I | re.A)
_SHORT_UNIT = re.compile("[mshgl]")  # one in a unit of several
_KNOWN_UNIT = re.compile(_UNIT.partition("|(?=")[0] + ")", re.I | re.A)
_MAX_UNITS = 12  # words and what joins them
_MONEY = {sign: sign for sign in "\u20ac\u00a3\u00a5\u20b9"} | {"$": "dollars"}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))? ?(?:\\text\{)?([ap])\.?m\.?\}?", re.I)
_DOMAIN = [("sign", "\u2208"), ("sign", r"\mathbb{R}")]
_OPTION = re.compile("[A-J]")


def _with_period(repeating: re.Match[str]) -> str:
    whole, once, period = (re.sub(r"\D", "", digits) for digits in repeating.groups())
    of_once = int(whole + once or "0")
    value = Fraction(int(f"{of_once}{period}") - of_once, (10 ** len(period) - 1) * 10 ** len(once))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value)


def _less(relation: re.Match[str]) -> str:
    return "<" if relation[0] == ">" else r"\le "


_WRITTEN = (
    (r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)|(?=\())(\{\d+\}(?:\d*\\dot\{\d\})?|\(\d+\))", _with_period),
    (r"\\(ln|log)(?: (\w+)|(\d+))(?=/\\\1)", r"\\\1(\2\3)"),  # ln 3 / ln 2
    (r"^\(([0-9A-F]+)\)(?=_)", r"\1"),  # (2102)_3
    (r"^([^<>=]+?)(>|\\geq? ?)([^<>=]+?)(>|\\geq? ?)([^<>=]+)$",  # 3 > x > 1
     lambda x: "".join(re.sub(r"^(?:>|\\geq? ?)$", _less, part) for part in reversed(x.groups()))),
    (r"^((?!.*(?<![a-zA-Z\\])[ab]).*\+)c$", r"\1C"),  # the constant of an integral
    (r"^((?:[^<>a-zA-Z\\]|\\[^a-zA-Z]|\\(?:frac|sqrt|pi))+)=([A-DF-HJ-Za-df-hj-z](?:_\{\w\})?)$", r"\2=\1"),  # 2=a
)  # fmt: skip
"""Replacements in the text of an answer, before it is parsed."""
_REPEATED = re.compile(r"(\d*)\.(\d*?)(\d{1,9}?)\3\3+")
_PATTERNS = [(re.compile(pattern), written) for pattern, written in _WRITTEN]


@functools.lru_cache(maxsize=64)
def clean(answer: str) -> str:
    """Return an answer as LaTeX in one notation, without what marks it as an answer.

    Raises:
        UnreadableError: the answer is nested too deeply.
    """
    text = written(form_of(answer))
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    if clock := _CLOCK.fullmatch(text):
        return rf"{int(clock[1])}:{clock[2] or '00'} \text{{{clock[3].lower()}m}}"
    return text


@functools.lru_cache(maxsize=64)
def form_of(answer: str) -> Nodes:
    """Return the tree of an answer in one notation and form."""
    nodes = _bare(list(notation_of(answer)))
    for change in (
        _repeated,
        _lines,
        _spaced,
        _money,
        _signed,
        _scaled,
        _units,
        _joints,
        _ratio,
        _intervals,
        _builders,
        _commas,
        bounded,
        domains,
        points,
        arcs,
        angles,
    ):
        nodes = list(change(nodes))
    return tuple(_bare(nodes))


def _bare(nodes: list[Node]) -> list[Node]:
    """Return an answer without what stands around it: blanks, marks of a sentence, a sign of equality."""
    begin, end = 0, len(nodes)
    while begin < end and (nodes[begin].kind in ("blank", "line") or nodes[begin].text in ("=", "\u2248")):
        begin += 1
    while end > begin and (nodes[end - 1].kind in ("blank", "line") or nodes[end - 1].text in (".", ",", ";", ":")):
        end -= 1
    nodes = nodes[begin:end]
    if at(nodes, 0).text.casefold() == "approximately" and _begins_number(nodes, next_place(nodes, 1)):
        return _bare(nodes[1:])
    if at(nodes, 0).text in ("\u2013", "\u2014") and at(nodes, next_place(nodes, 1)).kind == "number":
        nodes = [Node("sign", "-"), *nodes[next_place(nodes, 1) :]]
    return nodes


def _begins_number(nodes: Sequence[Node], place: int) -> bool:
    node = at(nodes, place)
    return (
        node.kind in ("number", "command")
        or node.text == "\u221e"
        or (node.text in "-." and at(nodes, place + 1).kind == "number")
    )


def _repeated(nodes: list[Node]) -> Iterator[Node]:
    """Write a decimal whose digits go on for ever, `0.333...`, as its fraction."""
    place = 0
    while place < len(nodes):
        node, is_begun = nodes[place], at(nodes, place + 1).text == ELLIPSIS
        repeated = _REPEATED.fullmatch(node.text) if node.kind == "number" and is_begun else None
        yield from notation_of(_with_period(repeated)) if repeated else (node,)
        place += 2 if repeated else 1


def _lines(nodes: list[Node]) -> Iterator[Node]:
    """Separate lines of equations by commas; between others a line's end is a blank."""
    is_system = any(node.kind == "line" for node in nodes) and sum(node.text == "=" for node in nodes) > 1
    for node in nodes:
        if node.kind == "line":
            yield Node("sign", ",") if is_system else Node("blank", " ")
        else:
            yield node


def _spaced(nodes: list[Node]) -> Iterator[Node]:
    """Join the digits of a number that begins the answer: `1 234 567`."""
    begin = 1 if at(nodes, 0).text in ("-", "+") else 0
    end = begin + 1
    digits = at(nodes, begin).text if at(nodes, begin).kind == "number" else ""
    while at(nodes, end).kind == "blank" and re.fullmatch(r"\d{3}", at(nodes, end + 1).text) and digits.isdigit():
        digits, end = digits + nodes[end + 1].text, end + 2
    is_one = len(at(nodes, begin).text) <= 3 and at(nodes, next_place(nodes, end)).kind not in ("number", "command")
    if end > begin + 1 and is_one and at(nodes, next_place(nodes, end)).text != "/":
        nodes = [*nodes[:begin], Node("number", digits), *nodes[end:]]
    yield from nodes


def _money(nodes: list[Node]) -> Iterator[Node]:
    """Write a sign of money as a unit behind its number."""
    ends = [node.text for node in (*nodes[:1], *nodes[-1:]) if node.text in _MONEY]
    if ends and len(nodes) > 1:
        begin = next_place(nodes, 1) if nodes[0].text in _MONEY else 0
        nodes = [*nodes[begin : len(nodes) - (nodes[-1].text in _MONEY)], Node("text", _MONEY[ends[0]])]
    yield from (node for node in nodes if node.text != "$")


def _signed(nodes: list[Node]) -> Iterator[Node]:
    """Write "minus" and "negative" before a number as its sign."""
    for place, node in enumerate(nodes):
        is_word = node.kind in ("word", "text") and node.text.casefold() in ("minus", "negative")
        begins = place == 0 or nodes[place - 1].text in (",", "(", "[", "{", "=")
        yield Node("sign", "-") if is_word and begins and _begins_number(nodes, next_place(nodes, place + 1)) else node


def _scaled(nodes: list[Node]) -> Iterator[Node]:
    """Multiply a number by the word behind it: `1.5 million`."""
    place = 0
    while place < len(nodes):
        node, following = nodes[place], next_place(nodes, place + 1)
        name, _, rest = at(nodes, following).text.partition(" ")
        scale = _SCALES.get(name.casefold()) if at(nodes, following).kind in ("word", "text") else None
        if node.kind == "number" and scale is not None:
            value = Decimal(node.text.replace(",", "")).scaleb(scale)
            yield Node("number", format(value.to_integral() if value == value.to_integral() else value, "f"))
            if rest:
                yield Node("text", rest)
            place = following + 1
        else:
            yield node
            place += 1


def _units(nodes: list[Node]) -> Iterator[Node]:
    """Set words behind a number that ends the answer as its unit: `18 dollars`, `5cm`, `60 km/h`."""
    begin = 0
    while _is_of_value(at(nodes, next_place(nodes, begin))):
        begin = next_place(nodes, begin) + 1
    first = next_place(nodes, begin)
    unit = nodes[first:]
    words = [node.text for node in unit if node.kind == "word"]
    is_apart = first > begin or not words or (_KNOWN_UNIT.fullmatch(words[0]) and len(words[0]) > 1)
    is_number = any(node.kind in ("number", "command") for node in nodes[:begin])
    is_plain = bool(words) or any(node.text == "/" for node in unit)
    if not (is_number and is_apart and is_plain and len(unit) <= _MAX_UNITS and _are_units(unit)):
        yield from nodes
        return
    yield from nodes[:begin]
    exponent = [unit.pop()] if unit[-1].kind == "up" else []
    yield Node("text", "".join(node.text if node.kind != "up" else written((node,)) for node in unit))
    yield from exponent


def _is_of_value(node: Node) -> bool:
    """Return whether a part may be one of a number that roots, powers and pi are written with."""
    if node.kind == "up" or (node.kind == "command" and node.text == "sqrt"):
        return all(map(_is_of_value, (part for parts in node.args for part in parts)))
    return is_numeric(node) or (node.kind == "sign" and node.text in ("\u00b7", "\u03c0", "(", ")"))


def is_numeric(node: Node) -> bool:
    """Return whether a part may be one of a plain number: digits, a sign, a fraction."""
    if node.kind == "command":
        return node.text == "frac" and all(map(is_numeric, (part for parts in node.args for part in parts)))
    return node.kind == "number" or (node.kind == "sign" and node.text in ("-", "+", "/", "."))


def _are_units(unit: list[Node]) -> bool:
    is_compound = any(node.kind == "up" or node.text in ("/", " ") for node in unit)
    for node in unit:
        is_unit = _IS_UNIT.fullmatch(node.text) or (
            (is_compound or len(unit) == 1) and _SHORT_UNIT.fullmatch(node.text)
        )
        if node.kind == "word" and not is_unit:
            return False
        if node.kind not in ("word", "text", "blank", "up") and node.text not in ("/", "-"):
            return False
    return unit[0].kind in ("word", "text") and unit[-1].kind in ("word", "text", "up")


def _joints(nodes: list[Node]) -> Iterator[Node]:
    """Write "and" and "or" between parts of the answer as joints; beside a word they are words."""
    is_of_relations = any(node.text in RELATIONS for node in nodes)
    is_of_options = all(_OPTION.fullmatch(node.text) for node in nodes if node.kind in ("word", "number"))
    place = 0
    while place < len(nodes):
        node, following = nodes[place], next_place(nodes, place + 1)
        word = node.text.casefold().strip(" ,;") if node.kind in ("word", "text") else ""
        is_joint = word in ("and", "or", "&") and place > 0 and _is_part(nodes, following)
        if (
            node.text == ","
            and _is_joint_word(at(nodes, following))
            and _is_part(nodes, next_place(nodes, following + 1))
        ):
            place = following  # `1, 2, and 3`
            continue
        if not is_joint:
            yield node
        elif word == "or" and (is_of_relations or is_of_options):
            yield Node("text", "or")
        else:
            yield Node("sign", ",")
        place += 1


def _is_joint_word(node: Node) -> bool:
    return node.kind in ("word", "text") and node.text.casefold() in ("and", "or")


def _is_part(nodes: list[Node], place: int) -> bool:
    """Return whether a part of a list begins at a place: no word, nor an article before one."""
    node, behind = at(nodes, place), at(nodes, next_place(nodes, place + 1))
    if node.kind == "word":
        return len(node.text) == 1 and not (behind.kind == "word" and len(behind.text) > 1)
    return node.kind not in ("", "text")


def _ratio(nodes: list[Node]) -> Iterator[Node]:
    """Write `2 to 3` as `2:3`."""
    seen = [node for node in nodes if node.kind != "blank"]
    is_ratio = len(seen) == 3 and seen[0].kind == seen[2].kind == "number"
    if is_ratio and seen[1].kind in ("word", "text") and seen[1].text.casefold() == "to":
        yield from (seen[0], Node("sign", ":"), seen[2])
    else:
        yield from nodes


def _intervals(nodes: list[Node]) -> Iterator[Node]:
    """Write intervals whose brackets point outwards, `]0,3[`, with round brackets."""
    first, last = at(nodes, 0).text, at(nodes, len(nodes) - 1).text
    inner = [node.text for node in nodes[1:-1]]
    is_interval = (first == "]" or last == "[") and inner.count(",") == 1 and not set("[]") & set(inner)
    if is_interval and first in "[]" and last in "[]":
        yield from (Node("sign", "(" if first == "]" else "["), *nodes[1:-1], Node("sign", ")" if last == "[" else "]"))
    else:
        yield from nodes


def _builders(nodes: list[Node]) -> Iterator[Node]:
    r"""Write a set by its condition, `\{x \in \mathbb{R} \mid x > 3\}`, as the condition."""
    seen = [node for node in nodes if node.kind != "blank"]
    shown = [(node.kind, node.text) for node in seen]
    if shown[2:4] == _DOMAIN:
        del seen[2:4], shown[2:4]
    is_builder = len(seen) > 5 and shown[0] == ("sign", "{") and shown[-1] == ("sign", "}") and seen[1].kind == "word"
    if is_builder and shown[2] in (("sign", "|"), ("sign", ":")):
        condition = seen[3:-1]
        if any(node.text in RELATIONS or node.text == "\u2260" for node in condition) and seen[1] in condition:
            yield from (node for node in condition)
            return
        yield from (seen[0], seen[1], Node("sign", "|"), *condition, seen[-1])
    else:
        yield from nodes


def _commas(nodes: list[Node]) -> Iterator[Node]:
    """Separate the parts of a set or a point, `{100,200}`, of which no other comma has a blank behind it."""
    place = 0
    while place < len(nodes):
        end = closing_place(nodes, place)
        if end is None:
            yield nodes[place]
            place += 1
            continue
        inner = nodes[place + 1 : end]
        is_separated = any(node.text == "," for node in inner)
        yield nodes[place]
        for node in _commas(inner):
            if node.kind == "number" and "," in node.text and not is_separated:
                yield from _parts(node)
            else:
                yield node
        yield nodes[end]
        place = end + 1


def _parts(node: Node) -> Iterator[Node]:
    for place, digits in enumerate(node.text.split(",")):
        if place:
            yield Node("sign", ",")
        yield Node("number", digits)


@functools.cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for name, sign in library()[2].items():
        if not sign.isascii() and not name.startswith("text"):
            names.setdefault(sign, f"\\{name}")
    return {**names, "\u00b0": r"^\circ", "\u25b3": r"\triangle", "\u2205": r"\emptyset", "\u2026": r"\ldots",
            "\u2016": r"\|", "\u0394": r"\Delta", "\u03a9": r"\Omega", "\u03bc": r"\mu"}  # fmt: skip


def written(nodes: Sequence[Node]) -> str:
    """Return a tree as LaTeX, with blanks only where they separate numbers or words."""
    text, is_blank, before = "", False, at(nodes, -1)
    for node in nodes:
        if node.kind in ("blank", "line"):
            is_blank = True
            continue
        part = _written(node)
        is_apart = _are_apart(text, part, is_blank=is_blank)
        is_text = "text" in (node.kind, before.kind) and (text[-1:].isalnum() or text[-1:] == "}") and node.kind != "up"
        text += f" {part}" if text and (is_apart or (is_text and part[:1] not in (",", "^"))) else part
        is_blank, before = False, node
    return text.strip()


def _are_apart(text: str, part: str, *, is_blank: bool) -> bool:
    if not part[:1].isalnum():
        return False
    if re.search(r"\\[a-zA-Z]+$", text):
        return True
    is_unit = text[-1:].isdigit() and part[:1].isalpha() and len(part) == 1
    return text[-1:].isalnum() and ((is_blank and not is_unit) or (text[-1:].isdigit() and part[:1].isdigit()))


def _written(node: Node) -> str:
    inner = [written(part) for part in node.args]
    match node.kind:
        case "number":
            return node.text.replace(",", "")
        case "text":
            return rf"\text{{{node.text}}}"
        case "sign":
            if node.text in ("{", "}", "%"):
                return f"\\{node.text}"
            return ", " if node.text == "," else _names().get(node.text, node.text)
        case "up" | "down":
            return f"{'^' if node.kind == 'up' else '_'}{{{inner[0]}}}"
        case "group":
            return f"{{{inner[0]}}}"
        case "rows":
            rows = r"\\".join("&".join(written(cell.args[0]) for cell in row) for row in node.args)
            return rf"\begin{{{node.text}}}{rows}\end{{{node.text}}}"
        case "command":
            degree = f"[{inner.pop(0)}]" if node.text == "sqrt" and len(inner) > 1 else ""
            return f"\\{node.text}{degree}" + "".join(f"{{{part}}}" for part in inner)
    return node.text
