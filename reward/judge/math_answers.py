"""Is a final answer the expected one? Asked of a judge, and where that takes math-verify, of a confined fork of it.

math-verify reads LaTeX by a grammar. It looks for answers by patterns of its own, which take any number that stands
somewhere: here the answer is found first, and math-verify gets nothing else.

A number must be worked out: `2 + 6` is 8, but whoever repeats the question's sum has not answered it. math-verify takes
both for equal, and a policy that is rewarded for it stops answering. What it has read is still a sum, a product, a
power or a root; only quotients of whole numbers, doubled signs and numbers side by side (it reads `2 4` as 6, and
`(2)(1/4)` as 2.25) are gone from it, and for those the text is asked.
"""

import functools
import itertools
import math
import re
import sys
from typing import Any

from reward.judge.math_marks import MAX_ANSWER_CHARS, find_answer, find_marked
from reward.judge.math_text import (
    as_text,
    clean,
    has_other_factors,
    is_compound,
    is_same_compound,
    is_same_text,
    is_words,
    unit_as_text,
    with_name_first,
    without_modulus,
)
from reward.judge.no_code import forbid_code

MAX_DEPTH = 20  # of brackets: math-verify's time doubles with each
_PER_CENT = re.compile(r"\s*(?:\\?%|per ?cent(?:age)?|pct)\s*$", re.I)
_WARM_UP = (
    (r"\frac{1}{2}x^2-\sqrt{3}\pi", r"\frac{x^2}{2}-\pi\sqrt{3}"),
    (r"[0,1)\cup(2,\infty)", r"x \in (0,1)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\{1,2\}"),
    ("(x-1)(x+1)=5", "y=x^2-1"),
    ("72", "72.5"),
    ("-5,000", r"10\%"),
    (r"2^{10}\cdot 3", r"\text{(A)}"),
)
_MIXED = re.compile(r"(?<![\d.,^_])(\d+)(?:[\s~]|\\[,;: ])+(\d{1,2})\s?/\s?([1-9]\d*)(?!\d|\.\d)")
_INTEGER = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)", re.ASCII)
_SMALL_SHARE, _ROUNDED = 1e-4, 1e-5  # of a number by which another may differ; more than what rounding hides
_SIDES = re.compile(r"=|\\(?:approx|equiv)(?![a-zA-Z])")
_APPROX = r"\approx"
_ABOUT = 0.05  # of a number: what the sides of this may differ by
_SAME, _FLOAT = 1e-6, 1e-12  # what the sides of `=` may differ by, and the share of them that floats are exact to
_BASE = re.compile(r"\d_\{?(\d+)")
_NOT_COUNTED = re.compile(  # texts with their exponents, and subscripts
    r"\\(?:text|textrm|textbf|textit|mathrm|mathit|mathbf|mbox)\s*\{(?:[^{}]|\{[^{}]*\})*\}(?:\s*\^(?:\{[^{}]*\}|\d))?"
    r"|_(?:\{\w*\}|\w)"
)
_SEPARATOR = re.compile(r"(?<=\d)(?:[\s{},']|\\[,;:! ])+(?=\d{3}(?!\d))")
_DIGITS = re.compile(r"\d+")
_QUOTIENT = re.compile(r"[/:](?=[^A-Za-z]*\d)|\\[dtc]?frac|\\over(?![a-z])|\\div|\u00f7")
# By brackets, which math-verify may read as a sum, or by a sign of division.
_PRODUCT = re.compile(r"[\d)]\s*\((?!10\s*[\^)])|\)\s*(?:\d|\\[dtc]?frac)|\\div|\u00f7")
_NONSENSE = ("1=2", "x=x+1")  # equations without a solution: all of them are equal, says math-verify


def load() -> None:
    """Import what reading needs and use it once, which sets up its tables."""
    if "math_verify" in sys.modules:
        return
    import logging  # judges of programs start without

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it does not limit time
    _distinguish_case()
    for pair in _WARM_UP:
        verify(*map(_read, pair))
    forbid_code("sympy.parsing")


def _distinguish_case() -> None:
    """Read `r` and `R` as two variables: math-verify's own reading makes them one."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from math_verify import parser

    config = ConversionConfig(lowercase_symbols=False)
    parser.latex2sympy = functools.partial(parser.latex2sympy, conversion_config=config)


def grade_text(response: str, answer: str) -> tuple[str, float, str]:
    """Find the answer, and grade what needs no mathematics: no answer, equal texts, whole numbers.

    Returns:
        Outcome (pass, fail, no_answer, unreadable, or "" if that is for `grade_math` to say), points in [0, 1], and
        what was found in the response.
    """
    found = find_answer(response)
    if found is None:
        return "no_answer", 0.0, ""
    if len(found) > MAX_ANSWER_CHARS or _depth(found) > MAX_DEPTH:
        return "unreadable", 0.0, "it is too long, or nested too deeply"
    answers = (clean(found), _expected(answer))
    if is_same_text(*answers):
        return "pass", 1.0, found
    texts = [as_text(text) for text in answers]
    numbers = [text.replace(",", "") for text in texts]
    if all(map(_INTEGER.fullmatch, texts)):
        is_right = int(numbers[0]) == int(numbers[1])
        return "pass" if is_right else "fail", float(is_right), found
    return "", 0.0, found


def grade_math(found: str, answer: str) -> tuple[str, float, str]:
    """Outcome (pass, fail), points, and the answer that `grade_text` found."""
    expected = _expected(answer)
    given = with_name_first(without_modulus(clean(found), expected), expected)
    is_right = is_equal(unit_as_text(given), expected)
    return "pass" if is_right else "fail", float(is_right), found


def is_equal(found: str, expected: str) -> bool:
    """Whether math-verify finds two answers equal, which differ as text."""
    if is_words(as_text(expected)):  # to it a word is a product of letters, in any order
        return False
    if is_compound(found) or is_compound(expected):
        return is_same_compound(found, expected)
    if has_other_factors(found, expected) or _is_of_other_base(found, expected):
        return False
    if _has_unequal_sides(found, expected):
        return False
    gold, other = _read(expected), _read(found)
    if not gold or not other or not verify(gold, other) or _is_far(gold[0], other[0]):
        return False
    if _numbers_in(gold[0]) and _has_result(expected, gold) and not _has_result(found, gold):
        return False
    return "=" not in expected or not any(verify(gold, _read(nonsense)) for nonsense in _NONSENSE)


def _has_result(answer: str, gold: list[Any]) -> bool:
    """Whether a side of an answer is the expected number, and no calculation of it."""
    sides = ((side, _read(side)[:1]) for side in _SIDES.split(answer))
    return any(value and _is_worked_out(side, value[0]) and verify(gold, value) for side, value in sides)


def _is_far(gold: Any, found: Any) -> bool:
    """Whether two numbers are equal to math-verify because both are small: it rounds to six decimals."""
    numbers = _numbers(gold, found)
    if not numbers or numbers[0] == 0:
        return False
    return _SMALL_SHARE * max(map(abs, numbers)) < abs(numbers[0] - numbers[1]) < _ROUNDED


def _is_of_other_base(found: str, expected: str) -> bool:
    """Whether numbers have unequal subscripts, which math-verify drops; without one a number is decimal."""
    bases = set(_BASE.findall(found))
    return bool(bases) and bases != set(_BASE.findall(expected) or ["10"])


def _has_unequal_sides(found: str, expected: str) -> bool:
    r"""Whether numbers said to be equal, or about equal, are not: math-verify takes one (`31 \approx 47`, `6 = 5`)."""
    if _APPROX in expected or "=" in expected or not (_APPROX in found or "=" in found):
        return False
    equal = [
        [
            number
            for side in part.split("=")
            if not _PRODUCT.search(side)
            for value in _read(side)[:1]
            for number in _numbers(value)
        ]
        for part in found.split(_APPROX)
    ]
    if any(not math.isclose(some[0], one, rel_tol=_FLOAT, abs_tol=_SAME) for some in equal for one in some):
        return True
    numbers = [number for some in equal for number in some]
    return bool(numbers) and max(numbers) - min(numbers) > _ABOUT * max(map(abs, numbers))


def _numbers(*values: Any) -> list[float]:
    """The values as numbers (of equations the right side), or nothing if one is none."""
    try:
        return [float(getattr(value, "rhs", value)) for value in values]
    except (TypeError, ValueError, OverflowError):  # a set, a formula, ...
        return []


def _expected(answer: str) -> str:
    marked = find_marked(answer)
    return clean(answer if marked is None else marked)


def _depth(text: str) -> int:
    depths = itertools.accumulate(("([{".find(mark) >= 0) - (")]}".find(mark) >= 0) for mark in text)
    return max(depths, default=0)


def verify(gold: list[Any], found: list[Any]) -> bool:
    """math-verify's comparison, whose limits of time are those of this process."""
    import math_verify

    return math_verify.verify(gold, found, timeout_seconds=None)


def _read(answer: str) -> list[Any]:
    import math_verify

    answer = _MIXED.sub(_as_fraction, answer)
    share = _PER_CENT.search(answer)
    latex = f"${answer[: share.start()].rpartition('=')[2]}$%" if share else f"${answer}$"
    read = math_verify.parse(latex, (math_verify.LatexExtractionConfig(),), parsing_timeout=None)
    return [value for value in read if not isinstance(value, str)]


def _as_fraction(mixed: re.Match[str]) -> str:
    whole, numerator, denominator = map(int, mixed.groups())
    return rf"\frac{{{whole * denominator + numerator}}}{{{denominator}}}"


def _is_worked_out(text: str, value: Any) -> bool:
    """Whether it is one number, and its text no product, no whole quotient, and no sign of a sign."""
    numbers = _numbers_in(value)
    text = _NOT_COUNTED.sub("", text)
    if not numbers or text.count("-") != sum(bool(number < 0) for number in numbers) or _PRODUCT.search(text):
        return False
    if not all(number.is_Integer for number in numbers):
        return True
    written = {int(digits) for digits in _DIGITS.findall(_SEPARATOR.sub("", text))}
    return not _QUOTIENT.search(text) and written - {1} == {abs(int(number)) for number in numbers} - {1}


def _numbers_in(value: Any) -> list[Any]:
    """The numbers that it is written with (-1, 3, 10 and 5 for `-3 * 10^5`); none if it is a calculation."""
    from sympy import Equality, FiniteSet, Function, Integer, Mul, Number, Pow, Rational, Symbol, UnevaluatedExpr

    if isinstance(value, FiniteSet) and len(value) == 1:
        (value,) = value
    if isinstance(value, Equality) and isinstance(value.lhs, (Symbol, Function)):
        value = value.rhs
    parts = Mul.make_args(value)
    numbers = [part for part in parts if isinstance(part, Number) and part.is_finite]
    powers = [part for part in parts if isinstance(part, Pow) and part.base == 10 and isinstance(part.exp, Integer)]
    shares = [part for part in parts if part == UnevaluatedExpr(Rational(1, 100))]
    scales = len(powers) + len(shares)
    num_signs = 1 if scales and numbers[0:1] == [-1] and len(numbers) > 1 else 0
    if scales > 1 or len(numbers) - num_signs > 1 or len(numbers) + scales < len(parts):
        return []
    return [*numbers, *(number for power in powers for number in power.args)]
