"""Comparison of a final answer with the expected one, in a judge; math-verify runs in a confined fork of the judge.

math-verify reads LaTeX by a grammar. Its own patterns for finding an answer take any number of a text. So the answer is
found here first, and math-verify gets nothing else.

A number must be worked out: `2 + 6` is 8, but repeating the question's sum is no answer, and a policy that is rewarded
for it stops answering. A sum, a product, a power or a root is still one in what math-verify has read. Quotients of
whole numbers, doubled signs and numbers side by side (`2 4`, `(2)(1/4)`) are not, so they are looked for in the text.
"""

import functools
import itertools
import math
import re
from collections import Counter
from typing import Any

from reward.judge import math_cases, math_forms, math_order, math_parts, math_sets, math_text, math_units
from reward.judge.math_latex import MAX_DEPTH, Nodes, depth
from reward.judge.math_marks import MAX_ANSWER_CHARS, find_answer, find_marked
from reward.judge.math_tree import RELATIONS
from reward.judge.no_code import forbid_code

_WARM_UP = (
    (r"\frac{1}{2}x^2-\sqrt{3}\pi", r"\frac{x^2}{2}-\pi\sqrt{3}"),
    (r"[0,1)\cup(2,\infty)", r"x \in (0,1)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\{1,2\}"),
    ("(x-1)(x+1)=5", "y=x^2-1"),
    ("72", "72.5"),
    ("2x", "x"),
    (r"x > \frac{1}{2}", r"1 \le x < 3"),
    (r"\log_{2} 5+\ln(3)", r"e^{-2}\sin x"),
    ("n!", r"|x|+x_{1}"),
    (r"3\cdot 10^{-4}", "0.0003, 5"),
    (r"2\pi i", r"\sqrt[3]{5}/2"),
    (r"5 \text{cm}", r"28\%"),
    (r"\frac{\pi}{3}", r"(\frac{1}{2}, -3)"),
)
"""Pairs of answers that `load` compares, so that math-verify sets up its parser's tables before the first question."""
_RELATIONS = RELATIONS | {"=", "\u2260", "\u2208"}
_INTEGER = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)", re.ASCII)
_DIGIT = re.compile(r"\d")
_COMMA = re.compile(r",\s+|\s+$|^\s+|\$")
_MIXED = re.compile(r"\s*(\d+) and (\d+) ?/ ?(\d+)\s*")
_KNOWN_DIGITS, _MAX_DIGITS = 100, 1000  # to which numbers are known, and up to which two that differ are told apart
_ROUNDED, _SHARE = 5e-7, 1e-4  # what a decimal may differ by, and the share of it: more than what rounding hides
_SIDES = re.compile(r"=|\\(?:approx|equiv)(?![a-zA-Z])")
_APPROX = r"\approx"
_ABOUT = 0.05  # of a number: what the sides of this may differ by
_BASE = re.compile(r"\d_\{?(\d+)")
_QUOTIENT = re.compile(r"[/:](?=[^A-Za-z]*\d)|\\[dtc]?frac|\\over(?![a-z])|\\div|\u00f7")
_FUNCTIONS = r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|log|ln|lg|exp)"
# By brackets, which math-verify may read as a sum, or by a sign of division.
_PRODUCT = re.compile(r"[\d)]\s*\((?!10\s*[\^)])|\)\s*(?:\d|\\[dtc]?frac)|\\div|\u00f7" + f"|{_FUNCTIONS}")
_LAST_LETTER = re.compile(r"(?<![a-zA-Z\\])([a-z])$")
_NO_NAMES = re.compile(
    r"^[^,=<>]*(?:\\in(?![a-zA-Z])|\\approx)|(?<=,)[^,=<>]*\\in(?![a-zA-Z])"  # of a value: the name is not kept
    r"|\\(?:text|mathbb|begin|end)\{[^{}]*\}|\\[a-zA-Z]+|(?<=\d)[A-Z\d]*_|\b[A-Z\d]*\d_"
)
_LETTERS = re.compile(r"[a-chj-zA-DF-HJ-Z]")  # without those of numbers and differentials
_NONSENSE = ("1=2", "x=x+1")  # equations without a solution: all of them are equal, says math-verify


@functools.cache
def load() -> None:
    """Import what reading needs, let math-verify compare numbers as this file does, and use it to set up its tables."""
    import logging  # judges of programs start without

    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify import grader, parser
    from sympy import MatrixBase

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it does not limit time
    config = ConversionConfig(lowercase_symbols=False)  # `r` and `R` are two variables
    parser.latex2sympy = functools.partial(parser.latex2sympy, conversion_config=config)
    by_parts, by_formula = grader.sympy_numeric_eq, grader.sympy_symbolic_eq
    grader.sympy_numeric_eq = lambda gold, found, *precision: (
        by_parts(gold, found, *precision) if isinstance(gold, MatrixBase) else is_same_number(gold, found)
    )
    grader.sympy_symbolic_eq = lambda gold, found: (
        not _is_number(gold) and (gold.as_dummy() == found.as_dummy() or by_formula(_rooted(gold), _rooted(found)))
    )
    grader.sympy_compare_symbols = lambda gold, found: _name(gold) == _name(found)
    for pair in _WARM_UP:
        grade_math(*pair)
    forbid_code("sympy.parsing")


def grade_text(response: str, answer: str) -> tuple[str, float, str]:
    """Find the answer in a response, and grade it if that takes no mathematics (no answer, equal texts, whole numbers).

    The result is the outcome (pass, fail, no_answer, unreadable, or "" if `grade_math` has to decide), points in [0,
    1], and the answer found in the response.
    """
    found = find_answer(response)
    if found is None:
        return "no_answer", 0.0, ""
    if len(found) > MAX_ANSWER_CHARS or depth(found) > MAX_DEPTH:
        return "unreadable", 0.0, "it is too long, or nested too deeply"
    texts = [text.strip(" \n$").removesuffix(".") for text in (found, _expected(answer))]
    if texts[0] == texts[1] and texts[0]:
        return "pass", 1.0, found
    if all(map(_INTEGER.fullmatch, texts)):
        is_right = len({int(text.replace(",", "")) for text in texts}) == 1
        return "pass" if is_right else "fail", float(is_right), found
    return "", 0.0, found


def is_whole_number(answer: str) -> bool:
    """Return whether an expected answer is digits alone, which most responses are compared with without a parser."""
    return _INTEGER.fullmatch(answer.strip()) is not None


def grade_answer(response: str, answer: str) -> tuple[str, float, str]:
    """Grade a response by `grade_text`, and by `grade_math` if the text alone does not decide."""
    grade = grade_text(response, answer)
    return grade if grade[0] else grade_math(grade[2], answer)


def grade_math(found: str, answer: str) -> tuple[str, float, str]:
    """Return the outcome (pass, fail), the points, and `found`, the answer that `grade_text` returned."""
    expected = _expected(answer)
    is_known = len(expected) <= MAX_ANSWER_CHARS and depth(expected) <= MAX_DEPTH
    is_right = is_known and (is_answer(found, expected) or _is_mixed(found, expected))
    return "pass" if is_right else "fail", float(is_right), found


def can_read(answer: str) -> bool:
    """Return whether math-verify reads an expected answer, so that other ways to write its value are right as well."""
    text = math_forms.clean(_expected(answer))
    return is_equal(text, text)


def is_answer(found: str, expected: str) -> bool:
    """Return whether an answer is the expected one: by its text, its option, the parts of its list, or its value."""
    texts = math_forms.clean(found), math_forms.clean(expected)
    if math_text.is_same_text(*texts) or _is_same_list(found, expected):
        return True
    option = math_parts.option_of(expected)
    if option is not None:
        return _is_option(found, option)
    if all(map(_INTEGER.fullmatch, texts)):
        return False
    nodes = math_forms.form_of(found), math_forms.form_of(expected)
    for compare in (_is_equal_by_names, _is_equal_by_kind, _is_equal_by_parts):
        verdict = compare(*nodes)
        if verdict is not None:
            return verdict
    return is_equal(*_without_modulus(*texts)) or _is_same_set(*nodes)


def _without_modulus(found: str, expected: str) -> list[str]:
    r"""Return two answers without `\pmod{13}`, where both have the same, or one has none and one is a number."""
    bare = [math_text.without_modulus(answer) for answer in (found, expected)]
    moduli = [answer[len(one) :] for answer, one in zip((found, expected), bare, strict=True)]
    is_told = moduli[0] == moduli[1] or (not all(moduli) and any(map(_INTEGER.fullmatch, bare)))
    return bare if is_told else [found, expected]


def _is_same_list(found: str, expected: str) -> bool:
    """Return whether two texts differ only in blanks behind commas, and the label is no number such as `1,250`."""
    return _COMMA.sub(",", found) == _COMMA.sub(",", expected) and not _INTEGER.fullmatch(expected.strip())


def _is_same_set(found: Nodes, expected: Nodes) -> bool:
    """Return whether two lists of equations and other relations have the same parts in any order."""
    lists = [math_parts.parts_of(nodes) for nodes in (found, expected)]
    is_set = all(one.brackets in ("", "{}") and len(one.parts) > 1 for one in lists)
    has_relations = all(any(node.text in _RELATIONS for node in nodes) for nodes in (found, expected))
    return is_set and has_relations and _are_equal([one.parts for one in lists], in_order=False)


def _is_option(found: str, option: math_parts.Option) -> bool:
    """Return whether an answer is an option's letter, text or both; numbers beside the letter must be the option's."""
    text, said = math_forms.written(option.text), math_parts.option_of(found)
    if said is None:
        return is_answer(found, option.letter) or is_answer(found, text)
    own = math_forms.written(said.text)
    words = [set(re.findall(r"\w+", answer.casefold())) for answer in (own, text)]
    is_same = words[0] <= words[1] or words[1] <= words[0]
    return said.letter == option.letter and (
        is_answer(own, text) or (is_same and not any(map(_DIGIT.search, (own, text))))
    )


def _is_mixed(found: str, expected: str) -> bool:
    """Return whether an answer is the mixed number that `2 and 3/4` may be, too."""
    mixed = _MIXED.fullmatch(expected)
    return mixed is not None and int(mixed[2]) < int(mixed[3]) and is_answer(found, f"{mixed[1]} {mixed[2]}/{mixed[3]}")


def _is_equal_by_names(found: Nodes, expected: Nodes) -> bool | None:
    """Return whether two answers are equal, where signs or names that math-verify does not see show it; else None."""
    value = _value_of(expected)
    is_unread = math_parts.unread(expected) or math_parts.is_of_event(expected)
    if value and not any(node.text == "=" for node in found) and is_unread:  # f'(2)=7, P(A|B)=1/2
        return is_answer(math_forms.written(found), math_forms.written(value))
    both = [list(map(math_forms.written, math_parts.sides_of(nodes))) for nodes in (found, expected)]
    if math_parts.is_of_event(expected) and len(both[0]) == len(both[1]) == 2 and both[0][0] == both[1][0]:
        return is_answer(both[0][1], both[1][1])
    names = [math_order.names_in(nodes) for nodes in (found, expected)]
    if math_parts.unread(found) != math_parts.unread(expected) or (all(names) and names[0] != names[1]):
        return False
    if math_parts.has_ellipsis(expected):
        lists = [math_parts.parts_of(nodes) for nodes in (found, expected)]
        return lists[0].brackets == lists[1].brackets and _are_equal([one.parts for one in lists])
    return None


def _is_equal_by_kind(found: Nodes, expected: Nodes) -> bool | None:
    """Return whether two sets, ratios, or functions of several pieces are equal; None: the answers are none."""
    sides = [math_parts.sides_of(nodes) for nodes in (found, expected)]
    pieces = [math_cases.pieces_of(some[-1]) for some in sides]
    if all(pieces):
        names = {math_forms.written(some[0]) for some in sides if len(some) > 1}
        return len(names) < 2 and _has_same_pieces(*pieces)
    lists = [math_parts.parts_of(nodes) for nodes in (found, expected)]
    listed = [one for one, nodes in zip(lists, (found, expected), strict=True) if not RELATIONS & {*_signs(nodes)}]
    if len(listed) == 1 and (listed[0].brackets == "{}" or (not listed[0].brackets and len(listed[0].parts) > 1)):
        return False  # numbers one by one are no interval
    sets = [math_sets.union_of(nodes) for nodes in (found, expected)]
    if any(sets):
        is_set = [one is not None or len(each.parts) == 1 for one, each in zip(sets, lists, strict=True)]
        both = zip(sets, (found, expected), strict=True)
        texts = [one.numbers if one else math_forms.written(nodes) for one, nodes in both]
        return all(is_set) and len({one.letter for one in sets if one}) == 1 and is_equal(*texts)
    ratios = [math_parts.terms_of(nodes) for nodes in (found, expected)]
    return _are_proportional(*ratios) if max(map(len, ratios)) > 2 else None


def _signs(nodes: Nodes) -> list[str]:
    return [node.text for node in nodes if node.kind == "sign"]


def _has_same_pieces(found: list[tuple[Nodes, ...]], expected: list[tuple[Nodes, ...]]) -> bool:
    left = list(expected)
    for piece in found:
        same = [one for one in left if len(one) == len(piece) and _are_equal([list(piece), list(one)])]
        if not same:
            return False
        left.remove(same[0])
    return not left


def _are_proportional(found: list[Nodes], expected: list[Nodes]) -> bool:
    """Return whether two ratios are equal, `4:6:10` and `2:3:5`; with a zero or letters their terms must be equal."""
    numbers = [
        [number for term in terms for number in _number(math_forms.written(term))] for terms in (found, expected)
    ]
    if len(found) != len(expected) or any(len(some) < len(found) or 0 in some for some in numbers):
        return _are_equal([found, expected])
    first, of_first = numbers[0][0], numbers[1][0]
    return all(is_same_number(other * first, one * of_first) for one, other in zip(*numbers, strict=True))


def _is_equal_by_parts(found: Nodes, expected: Nodes) -> bool | None:
    """Return whether two answers are equal, where their parts show it and math-verify does not see them; else None."""
    value = _value_of(expected)
    lists = [math_parts.parts_of(nodes) for nodes in (found, expected)]
    if any(_has_repeated(one) for one in lists) and min(len(one.parts) for one in lists) > 1:
        return lists[0].brackets == lists[1].brackets and _are_equal([one.parts for one in lists], in_order=False)
    brackets = [one.brackets for one in lists]
    if min(len(one.parts) for one in lists) > 1 and brackets[0] != brackets[1]:
        if "" not in brackets and set(brackets) & {"()", "{}", "[]"}:
            return False
        if "()" in brackets and "" in brackets:
            return _are_equal([one.parts for one in lists])
    sides = [math_parts.sides_of(nodes) for nodes in (found, expected)]
    if len(sides[0]) == 1 < len(sides[1]) and not value:
        return False
    if len(lists[1].parts) == 1 and len(sides[1]) > 2 and not any(map(math_parts.is_number, sides[1])):
        return Counter(map(math_forms.written, sides[0])) == Counter(map(math_forms.written, sides[1]))
    values = math_parts.values_of(lists[1].parts)
    if values and len(lists[0].parts) == len(values) and not any(node.text == "=" for node in found):
        return _are_equal([lists[0].parts, values])
    return None


def _value_of(equation: Nodes) -> Nodes:
    """Return the right side of an equation whose left side is a name; else nothing."""
    *others, last = math_parts.sides_of(equation)
    return last if others and math_parts.has_name(equation) else ()


def _has_repeated(one: math_parts.Parts) -> bool:
    """Return whether a list has a part more than once, of which math-verify makes a set."""
    return one.brackets == "" and len(set(map(math_forms.written, one.parts))) < len(one.parts)


def _are_equal(parts: list[list[Nodes]], *, in_order: bool = True) -> bool:
    """Return whether the parts of two lists are equal; `in_order=False`: each part of the first is in the second."""
    if len(parts[0]) != len(parts[1]):
        return False
    found, left = ([math_forms.written(part) for part in some] for some in parts)
    for text in found:
        place = next(
            (place for place, other in enumerate(left[: 1 if in_order else None]) if is_answer(text, other)), None
        )
        if place is None:
            return False
        del left[place]
    return True


_SHORT_WORD = re.compile(r"[IVXLCDM]{2,}|[A-Z]{3,}|[A-Za-z]?[bcdfghjklmnpqrstvwxyz][aeiou][a-z]|yes|no|on|in")


def is_equal(found: str, expected: str) -> bool:
    """Return whether math-verify finds two answers equal, which differ as text."""
    text = math_text.as_text(expected)
    if math_text.is_words(text) or _SHORT_WORD.fullmatch(text):  # to it a word is a product of letters, in any order
        return False
    if math_text.is_written(text):
        return math_text.as_text(found).casefold().removesuffix(" am").removesuffix(" pm") == text.casefold()
    if math_units.is_compound(found) or math_units.is_compound(expected):
        return math_units.is_same_compound(found, expected)
    bases = set(_BASE.findall(found))  # math-verify drops them
    if bases and bases != set(_BASE.findall(expected) or ["10"]):
        return False
    if math_units.says_another_number(found, expected) or _has_unequal_sides(found, expected):
        return False
    gold, other = _read(expected), _read(found)
    if not gold or not other or not verify(gold, other):
        return False
    if _numbers_in(gold[0]) and _has_result(expected, gold) and not _has_result(found, gold):
        return False
    return "=" not in expected or not any(verify(gold, _read(nonsense)) for nonsense in _NONSENSE)


def _has_result(answer: str, gold: list[Any]) -> bool:
    """Return whether a side of an answer is the expected number, and no calculation of it."""
    sides = ((side, _read(side)[:1]) for side in _SIDES.split(answer))
    return any(value and _is_worked_out(side, value[0]) and verify(gold, value) for side, value in sides)


def _name(value: Any) -> str:
    """Return the letters of a symbol or a product; math-verify may read a name of several letters as a product."""
    from sympy import Symbol

    factors = value.args if value.is_Mul and all(factor.is_Symbol for factor in value.args) else (value,)
    return "".join(factor.name if isinstance(factor, Symbol) else str(factor).replace("E", "e") for factor in factors)


def is_same_number(gold: Any, found: Any) -> bool:
    """Return whether two values are equal, exactly; a decimal may be a rounded one, and `28%` is 28 as well as 0.28."""
    from sympy import Integer, Rational, UnevaluatedExpr

    plain = [value.xreplace({UnevaluatedExpr(Rational(1, 100)): Integer(1)}) for value in (gold, found)]
    is_one_share = (plain[0] == gold) != (plain[1] == found) and not gold.free_symbols
    for one, other in [(gold, found), plain][: 1 + is_one_share]:
        gap, size = _gap(one, other)
        places = [_num_decimals(value) for value in (one, other)]
        rounds_off = 5 / 10 ** (min(places) + 1) if all(places) else _ROUNDED  # of two decimals the shorter is rounded
        if gap == 0 or (any(places) and gap <= min(_ROUNDED, rounds_off, _SHARE * size)):
            return True
    return False


def _num_decimals(value: Any) -> int:
    """Return the number of decimals that a number is written with."""
    decimals = [number for number in _numbers_in(value) if number.is_Float]
    return max((len(str(number).partition(".")[2].rstrip("0")) for number in decimals), default=0)


def _exact(value: Any) -> Any:
    from sympy import Float, Rational

    return value.xreplace({part: Rational(str(part)) for part in value.atoms(Float)}).doit()


def _rooted(value: Any) -> Any:
    """Write `sqrt(a*b)` as `sqrt(a)*sqrt(b)`: who writes roots of letters means positive factors."""

    def split(root: Any) -> Any:
        factors = [factor.as_base_exp() for factor in root.base.together().as_ordered_factors()]
        is_odd = all(power.is_odd for _, power in factors)
        return math.prod(base ** (power * root.exp) for base, power in factors) if is_odd else root

    return _exact(value).replace(lambda part: part.is_Pow and part.exp.is_Rational and not part.exp.is_Integer, split)


def _gap(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the difference of two numbers (0 if `_MAX_DIGITS` digits show none) and their mean size.

    For formulas, the difference is 0 or inf.
    """
    one, other = _exact(one), _exact(other)
    gap = (one - other).evalf(_KNOWN_DIGITS, maxn=_MAX_DIGITS)
    if not gap.is_number or gap.is_finite is False:
        return 0 if (one - other).evalf() == 0 else math.inf, 0
    parts = [abs(part) for part in gap.as_real_imag() if part.is_Integer or part._prec > 1]
    return sum(parts), ((abs(one) + abs(other)) / 2).evalf()


def _has_unequal_sides(found: str, expected: str) -> bool:
    r"""Return whether an answer equates unequal numbers (`31 \approx 47`, `6 = 5`); math-verify reads only one side."""
    if _APPROX in expected or "=" in expected or not (_APPROX in found or "=" in found):
        return False
    parts = [[side for side in part.split("=") if not _PRODUCT.search(side)] for part in found.split(_APPROX)]
    equal = [[number for side in sides for number in _number(side)] for sides in parts]
    gaps = itertools.starmap(_gap, itertools.combinations(itertools.chain(*equal), 2))
    return any(not is_same_number(some[0], one) for some in equal for one in some) or any(
        gap > _ABOUT * size for gap, size in gaps
    )


def _number(side: str) -> list[Any]:
    """Return the number that a side of an answer denotes (for an equation, its right side), or an empty list."""
    values = [getattr(value, "rhs", value) for value in _read(side)[:1]]
    return list(filter(_is_number, values))


def _is_number(value: Any) -> bool:
    return getattr(value, "is_number", False) and value.is_finite


def _expected(answer: str) -> str:
    marked = find_marked(answer)
    return answer if marked is None else marked


def verify(gold: list[Any], found: list[Any]) -> bool:
    """Compare by math-verify without its time limits; the limits of this process apply."""
    import math_verify

    return math_verify.verify(gold, found, timeout_seconds=None, allow_set_relation_comp=True)


def _read(answer: str) -> list[Any]:
    import math_verify

    answer = _LAST_LETTER.sub(r"{\1}", answer)  # to it a letter behind a number is a unit
    share = answer.endswith(r"\%")
    said = answer[:-2].rpartition("=")[2] if share else answer
    latex = f"${said}$%" if share else f"${said}$"
    read = math_verify.parse(latex, (math_verify.LatexExtractionConfig(),), parsing_timeout=None)
    values = [_with_names(value) for value in read if hasattr(value, "atoms")]  # no text, nor whether sets have others
    values = [value for value in values if _is_whole(value, said)]
    if answer != "{i}":  # by itself it is a letter
        values = list(map(_with_imaginary_unit, values))
    both = [answer.replace(r"\pm", one).replace(r"\mp", other) for one, other in ("+-", "-+")]
    if not values and both[0] != answer:  # it reads these signs outside fractions and roots alone
        return _read(", ".join(both))
    return values


def _with_names(value: Any) -> Any:
    r"""Return the value with names for derivatives of unknown functions (`\frac{dy}{dx}`), which are 0 to sympy."""
    from sympy import Derivative, Symbol

    unknown = [one for one in value.atoms(Derivative) if not one.expr.has(*one.variables)]
    names = {one: Symbol(str(one)) for one in unknown}
    return value.xreplace(names) if names else value


def _is_whole(value: Any, answer: str) -> bool:
    """Return whether the value that was read has every letter of the answer, and no infinity that hides some."""
    from sympy import Add, Mul, Pow, Symbol, oo
    from sympy.core.function import AppliedUndef

    names = "".join(map(str, value.atoms(Symbol, AppliedUndef)))
    is_hidden = any({oo, -oo} & {*part.args} and part.free_symbols for part in value.atoms(Add, Mul, Pow))
    return not is_hidden and set(_LETTERS.findall(_NO_NAMES.sub(" ", answer))) <= set(names)


def _with_imaginary_unit(value: Any) -> Any:
    """Return the value with the imaginary unit for the letter i, unless j or k beside it make it a vector."""
    from sympy import Basic, Equality, I, Symbol
    from sympy.core.relational import Relational

    if isinstance(value, Equality) and isinstance(value.lhs, Symbol):  # sympy finds `z = i` of a real z false
        return Equality(value.lhs, _with_imaginary_unit(value.rhs), evaluate=False)
    if not isinstance(value, Basic) or value.has(Relational):
        return value
    is_vector = not {"j", "k"}.isdisjoint(symbol.name for symbol in value.free_symbols)
    units = {symbol: I for symbol in value.free_symbols if symbol.name == "i"}
    return value if is_vector else value.xreplace(units)


def _is_worked_out(text: str, value: Any) -> bool:
    """Return whether a value is one number, and its text is no product, no whole quotient and has no doubled sign."""
    numbers = _numbers_in(value)
    text = re.sub(r"_(?:\{\w*\}|\w)", "", math_units.WITH_EXPONENT.sub("", text))  # nor counts a subscript
    if not numbers or text.count("-") != sum(bool(number < 0) for number in numbers) or _PRODUCT.search(text):
        return False
    if not all(number.is_Integer for number in numbers):
        return True
    written, wanted = re.sub(r"\D", "", text), "".join(str(abs(number)) for number in numbers)
    return not _QUOTIENT.search(text) and written in (wanted, f"1{wanted}")


def _numbers_in(value: Any) -> list[Any]:
    """Return the numbers in a value's notation (-1, 3, 10 and 5 for `-3 * 10^5`); none if it is a calculation."""
    from sympy import Equality, FiniteSet, Function, Mul, Number, Pow, Rational, Symbol, UnevaluatedExpr

    if isinstance(value, FiniteSet) and len(value) == 1:
        (value,) = value
    if isinstance(value, Equality) and isinstance(value.lhs, (Symbol, Function)):
        value = value.rhs
    parts = Mul.make_args(value)
    numbers = [part for part in parts if isinstance(part, Number) and part.is_finite]
    powers = [part for part in parts if isinstance(part, Pow) and part.base == 10 and part.exp.is_Integer]
    num_scales = len(powers) + parts.count(UnevaluatedExpr(Rational(1, 100)))
    num_signs = 1 if num_scales and numbers[0:1] == [-1] and len(numbers) > 1 else 0
    if num_scales > 1 or len(numbers) - num_signs > 1 or len(numbers) + num_scales < len(parts):
        return []
    return [*numbers, *(number for power in powers for number in power.args)]
