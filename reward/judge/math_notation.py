r"""One notation of what is written in several: plain text's `sqrt(2)`, `x^-2`, `3 1/2`, `sin x`, `3 x 10^8` as LaTeX.

Joints (commas, "and", "or") are parts of their own, so that the digits beside them stay two numbers.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from reward.judge.math_cases import cases
from reward.judge.math_latex import Node, Nodes, read, sign_of
from reward.judge.math_order import numerals, several, symmetric
from reward.judge.math_tree import at, closing_place, is_node, next_place

Rewrite = Callable[[list[Node]], Iterator[Node]]

_THIN = ("\\,", "\\;", "\\:", "\\!", "\\ ")
_FUNCTION = r"(?:arc)?(?:sin|cos|tan|cot|csc)h?|ln|log(?:2|10)?|lg|exp|(?:arc)?sech?"
_OF_SEVERAL = r"min|max|gcd|lcm"  # functions whose arguments stand in brackets
_FUNCTION_WORD = re.compile(rf"([b-zB-Z]?)({_FUNCTION}|{_OF_SEVERAL})(x?)")
_GREEK = """
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega
    Gamma Delta Theta Lambda Pi Sigma Phi Psi Omega
"""
_NAMES = {name: name for name in _GREEK.split()}
_NAMES |= dict.fromkeys(("infinity", "Infinity", "INFINITY", "infty"), "infty")
_NUMBERS = "two three four five six seven eight nine ten eleven twelve"
_BASES = {name: str(base) for base, name in enumerate(_NUMBERS.split(), 2)} | {"sixteen": "16"}
_ROOTS = {"sqrt": "", "\u221a": "", "cbrt": "3", "\u221b": "3", "\u221c": "4"}
_TEMPERATURES = ("c", "f", "celsius", "fahrenheit")
_AROUND = {"(": "pmatrix", "[": "bmatrix", "|": "vmatrix"}


def notation_of(text: str) -> Nodes:
    """Return the tree of an answer in one notation.

    Raises:
        UnreadableError: the answer is nested too deeply.
    """
    return rewritten(read(text))


def rewritten(nodes: Sequence[Node]) -> Nodes:
    """Return a tree in one notation, from its leaves to its root."""
    found = [node._replace(args=tuple(map(rewritten, node.args))) if node.args else node for node in nodes]
    for rewrite in _REWRITES:
        found = list(rewrite(found))
    return tuple(found)


def _digits(nodes: list[Node]) -> Iterator[Node]:
    r"""Join the digits of one number: `10\,000`, `1{,}234`, `1'000`, `1,\! 000`; and drop points between thousands."""
    place = 0
    while place < len(nodes):
        node = nodes[place]
        place += 1
        if node.kind == "number" and node.text.count(".") > 1:
            node = node._replace(text=node.text.replace(".", ""))
        while is_node(node, "number") and re.fullmatch(r"\d{1,3}(?:,?\d{3})*", node.text):
            end = _separator_end(nodes, place)
            behind = at(nodes, end)
            if end == place or not re.fullmatch(r"\d{3}(?:\.\d+)?", behind.text) or behind.kind != "number":
                break
            node, place = node._replace(text=node.text + behind.text), end + 1
        yield node


def _separator_end(nodes: list[Node], place: int) -> int:
    """Return where what separates thousands ends."""
    node = at(nodes, place)
    if (
        is_node(node, "blank", *_THIN)
        or is_node(node, "sign", "'")
        or (node.kind == "group" and _is_comma(node.args[0]))
    ):
        return place + 1
    if is_node(node, "sign", ",") and is_node(at(nodes, place + 1), "blank", "\\!"):
        return next_place(nodes, place + 1)
    return place


def _is_comma(content: Nodes) -> bool:
    return len(content) == 1 and is_node(content[0], "sign", ",")


def _scripts(nodes: list[Node]) -> Iterator[Node]:
    """Give exponents and subscripts their whole content: braces, brackets, a sign and what follows it, all digits."""
    place = 0
    while place < len(nodes):
        node = nodes[place]
        place += 1
        if not is_node(node, "sign", "^", "_"):
            yield node
            continue
        content, rest, place = _content(nodes, next_place(nodes, place), is_up=node.text == "^")
        yield from _script("up" if node.text == "^" else "down", content)
        yield from rest


def _ordinals(nodes: list[Node]) -> Iterator[Node]:
    r"""Write the ending of an ordinal number as text: `4th`, `4^{th}`, `4^{\text{th}}`."""
    before = Node("")
    for node in nodes:
        inner = node.args[0][0] if node.kind == "up" and len(node.args[0]) == 1 else node
        is_ending = before.kind == "number" and inner.kind in ("word", "text") and inner.text == _ending(before.text)
        yield Node("text", inner.text) if is_ending else node
        before = node


def _ending(digits: str) -> str:
    return "th" if digits[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1:], "th")


def _subscripts(nodes: list[Node]) -> Iterator[Node]:
    """Write a subscript before the exponent beside it."""
    place = 0
    while place < len(nodes):
        is_second = nodes[place].kind == "up" and at(nodes, place + 1).kind == "down"
        yield from (nodes[place + 1], nodes[place]) if is_second else (nodes[place],)
        place += 1 + is_second


def _content(nodes: list[Node], place: int, *, is_up: bool) -> tuple[Nodes, Nodes, int]:
    """Return a script's content, what is left of its last word, and the place behind it."""
    node = at(nodes, place)
    if node.kind == "group":
        return node.args[0], (), place + 1
    end = closing_place(nodes, place) if is_up and node.text == "(" else None
    if end is not None:
        return tuple(nodes[place + 1 : end]), (), end + 1
    if is_node(node, "sign", "-", "+") and at(nodes, place + 1).kind in ("number", "word", "command"):
        content, rest, end = _content(nodes, place + 1, is_up=is_up)
        return (node, *content), rest, end
    if node.kind == "word" and len(node.text) > 1 and node.text not in (*_BASES, *_NAMES):
        return (node._replace(text=node.text[0]),), (node._replace(text=node.text[1:]),), place + 1
    return ((node,) if node.kind else ()), (), place + 1


def _script(kind: str, content: Nodes) -> Iterator[Node]:
    content = tuple(part for part in content if part.kind != "blank")
    texts = [part.text for part in content]
    if kind == "up" and texts in (["\u2218"], ["\u00b0"]):
        yield Node("sign", "\u00b0")
    elif kind == "up" and texts and set(texts) == {"'"}:
        yield from content
    elif kind == "down" and len(texts) == 1 and texts[0] in _BASES:
        yield Node(kind, args=((Node("number", _BASES[texts[0]]),),))
    elif content:
        yield Node(kind, args=(content,))


def _groups(nodes: list[Node]) -> Iterator[Node]:
    """Drop braces, except those of a sum with an exponent."""
    for place, node in enumerate(nodes):
        is_raised = at(nodes, next_place(nodes, place + 1)).kind in ("up", "down")
        if node.kind == "group" and not (is_raised and len(node.args[0]) > 1):
            yield from node.args[0]
        else:
            yield node


def _named(nodes: list[Node]) -> Iterator[Node]:
    r"""Write the names of Greek letters, infinity, functions and roots as commands: `2pi`, `xlnx`, `sqrt(2)`."""
    place = 0
    while place < len(nodes):
        node = nodes[place]
        place += 1
        if node.kind in ("word", "text") and node.text in _NAMES:
            yield Node("sign", str(sign_of(_NAMES[node.text])))
        elif node.kind in ("word", "text") and (found := _FUNCTION_WORD.fullmatch(node.text)):
            yield from _function(nodes, place, node, found)
        elif is_node(node, "command", "lg"):
            yield from (Node("command", "log"), Node("down", args=((Node("number", "10"),),)))
        else:
            yield node


def _function(nodes: list[Node], place: int, node: Node, found: re.Match[str]) -> Iterator[Node]:
    before, name, behind = found.groups()
    following = at(nodes, next_place(nodes, place))
    if re.fullmatch(_OF_SEVERAL, name):
        is_function = not before and not behind and is_node(following, "sign", "(", "{")
    elif behind or name in ("sec", "sech", "arcsec", "arcsech"):  # 5 sec is a time
        is_function = (
            bool(behind) or is_node(following, "sign", "(") or following.kind == "up" or is_node(following, "word", "x")
        )
    else:
        is_function = _is_argument(following, is_apart=at(nodes, place).kind == "blank" or node.kind == "text")
    if not is_function:
        yield node
        return
    if before:
        yield Node("word", before)
    base = re.search(r"\d+", name)
    yield Node("command", "log" if base or name == "lg" else name)
    if base or name == "lg":
        yield Node("down", args=((Node("number", base[0] if base else "10"),),))
    if behind:
        yield Node("word", behind)


def _is_argument(node: Node, *, is_apart: bool) -> bool:
    if node.kind == "word":
        return is_apart and len(node.text) == 1
    is_greek = node.kind == "sign" and node.text[:1].isalpha()
    return node.kind in ("number", "up", "down", "command") or is_greek or is_node(node, "sign", "(", "|", "{")


def _based(nodes: list[Node]) -> Iterator[Node]:
    """Write `log2(5)` as the logarithm to the base 2, and `1011 base 2` with a subscript."""
    place = 0
    while place < len(nodes):
        node, behind = nodes[place], at(nodes, place + 1)
        is_base = node.kind in ("word", "text") and node.text.lower() in ("base", "in base")
        if (
            is_node(node, "word", "log")
            and is_node(behind, "number", "2", "10")
            and is_node(at(nodes, place + 2), "sign", "(")
        ):
            yield from (Node("command", "log"), Node("down", args=((behind,),)))
            place += 2
        elif is_base and (base := _base(at(nodes, next_place(nodes, place + 1)))):
            yield Node("down", args=((Node("number", base),),))
            place = next_place(nodes, place + 1) + 1
        else:
            yield node
            place += 1


def _base(node: Node) -> str:
    return node.text if node.kind == "number" else _BASES.get(node.text.lower(), "")


def _roots(nodes: list[Node]) -> Iterator[Node]:
    r"""Write `√2`, `sqrt(2)`, `∛(x+1)` and `\sqrt[3](2)` as commands with arguments, and `abs(x)` with bars."""
    place = 0
    while place < len(nodes):
        node = nodes[place]
        place += 1
        is_begun = is_node(node, "command", "sqrt") and [
            part.text for content in node.args[-1:] for part in content
        ] == ["("]
        if is_begun:  # `\sqrt(2)`: to LaTeX the bracket alone is under the root
            place -= 1
            nodes = [*nodes[:place], node.args[-1][0], *nodes[place + 1 :]]
        degree = node.args[:-1] if is_begun else ()
        if not is_begun and node.text in _ROOTS and node.kind in ("sign", "word") and _ROOTS[node.text]:
            degree = ((Node("number", _ROOTS[node.text]),),)
        is_root = is_begun or (node.kind in ("sign", "word") and node.text in _ROOTS)
        radicand, end = (
            _radicand(nodes, next_place(nodes, place)) if is_root or is_node(node, "word", "abs") else ((), place)
        )
        if not radicand:
            yield node
        elif is_root:
            yield Node("command", "sqrt", (*degree, rewritten(radicand)))
        else:
            yield from (Node("sign", "|"), *rewritten(radicand), Node("sign", "|"))
        place = end if radicand else place


def _radicand(nodes: list[Node], place: int) -> tuple[Nodes, int]:
    node, end = at(nodes, place), closing_place(nodes, place)
    if node.text == "(" and end is not None:
        return tuple(nodes[place + 1 : end]), end + 1
    is_letter = node.kind == "word" and len(node.text) == 1
    is_greek = node.kind == "sign" and node.text.isalpha()
    return ((node,), place + 1) if node.kind == "number" or is_letter or is_greek else ((), place)


def _fractions(nodes: list[Node]) -> Iterator[Node]:
    """Write mixed numbers (`3 1/2`) as fractions, and `x` before a power of ten as a sign."""
    place = 0
    while place < len(nodes):
        node, over = nodes[place], next_place(nodes, place + 1)
        slash = next_place(nodes, over + 1)
        under = next_place(nodes, slash + 1)
        numbers = [at(nodes, one) for one in (place, over, under)]
        is_mixed = over > place + 1 and is_node(at(nodes, slash), "sign", "/") and _is_whole(numbers)
        before = at(nodes, place - 1)
        if is_mixed and not (before.kind == "sign" and before.text in ".,^_"):
            whole, part, parts = (int(number.text) for number in numbers)
            digits = str(whole * parts + part), str(parts)
            yield Node("command", "frac", tuple((Node("number", digit),) for digit in digits))
            place = under + 1
        elif node.kind == "number" and is_node(at(nodes, over), "word", "x", "X") and _is_power_of_ten(nodes, slash):
            yield from (node, Node("sign", "\u00b7"))
            place = over + 1
        else:
            yield node
            place += 1


def _is_whole(numbers: list[Node]) -> bool:
    digits = [number.text for number in numbers if number.kind == "number" and number.text.isdigit()]
    return len(digits) == 3 and len(digits[1]) <= 2 and int(digits[2]) > 0


def _is_power_of_ten(nodes: list[Node], place: int) -> bool:
    return is_node(at(nodes, place), "number", "10") and at(nodes, place + 1).kind == "up"


def _marks(nodes: list[Node]) -> Iterator[Node]:
    r"""Write degrees, per cent, units over units and inverted signs each in one way."""
    place = 0
    while place < len(nodes):
        node, following = nodes[place], next_place(nodes, place + 1)
        behind, word = at(nodes, following), node.text.casefold() if node.kind in ("word", "text") else ""
        place += 1
        if (node.text == "\u00b0" or word in ("deg", "degree", "degrees")) and behind.text.casefold() in _TEMPERATURES:
            yield Node("text", behind.text[0].upper())
            place = following + 1
        elif word in ("degree", "degrees", "deg") and place > 1:
            yield Node("sign", "\u00b0")
        elif word == "per" and behind.text.casefold() in ("cent", "centage"):
            yield Node("sign", "%")
            place = following + 1
        elif word in ("percent", "percentage", "pct", "per cent"):
            yield Node("sign", "%")
        elif is_node(node, "command", "frac") and len(node.args) == 2 and all(map(_is_unit, node.args)):
            yield from (*node.args[0], Node("sign", "/"), *node.args[1])
        else:
            yield node


def _moduli(nodes: list[Node]) -> Iterator[Node]:
    r"""Write `mod 7`, `\bmod 7` and `(mod 7)` as `\pmod{7}`."""
    place = 0
    while place < len(nodes):
        opens = int(is_node(nodes[place], "sign", "("))
        name = next_place(nodes, place + opens)
        modulus = next_place(nodes, name + 1)
        is_modulo = at(nodes, name).text in ("mod", "bmod") and at(nodes, modulus).kind in ("number", "word")
        if is_modulo and (not opens or is_node(at(nodes, modulus + 1), "sign", ")")):
            yield Node("command", "pmod", ((nodes[modulus],),))
            place = modulus + 1 + opens
        else:
            yield nodes[place]
            place += 1


def _is_unit(nodes: Nodes) -> bool:
    return bool(nodes) and nodes[0].kind == "text" and all(part.kind in ("text", "up", "blank") for part in nodes)


def _matrices(nodes: list[Node]) -> Iterator[Node]:
    """Give arrays between brackets the name of the matrix that has them."""
    place = 0
    while place < len(nodes):
        node, inner = nodes[place], next_place(nodes, place + 1)
        rows, end = at(nodes, inner), next_place(nodes, inner + 1)
        name = _AROUND.get(node.text, "") if node.kind == "sign" else ""
        is_array = rows.kind == "rows" and rows.text in ("array", "matrix", "smallmatrix")
        if name and is_array and at(nodes, end).text in (")", "]", "|"):
            yield rows._replace(text=name)
            place = end + 1
        else:
            yield node
            place += 1


_REWRITES: tuple[Rewrite, ...] = (
    _digits,
    _based,
    _scripts,
    _subscripts,
    _ordinals,
    numerals,
    _named,
    _groups,
    _roots,
    _fractions,
    _marks,
    _moduli,
    cases,
    _matrices,
    several,
    symmetric,
)
