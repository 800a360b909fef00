"""Is a final answer the expected one? Asked of a judge, and where that takes math-verify, of a confined fork of it.

math-verify reads LaTeX by a grammar. It looks for answers by patterns of its own, which take any number that stands
somewhere: here the answer is found first, and math-verify gets nothing else.

A number must be worked out: `2 + 6` is 8, but whoever repeats the question's sum has not answered it, and a policy that
is rewarded for it stops answering. What math-verify has read is still a sum, a product, a power or a root; quotients of
whole numbers, doubled signs and numbers side by side (`2 4`, `(2)(1/4)`) are gone from it: for those the text is asked.
"""

import functools
import itertools
import math
import re
from typing import Any

from reward.judge import math_text
from reward.judge.math_marks import MAX_ANSWER_CHARS, find_answer, find_marked
from reward.judge.no_code import forbid_code

MAX_DEPTH = 20  # of brackets: math-verify's time doubles with each
_WARM_UP = (
    (r"\frac{1}{2}x^2-\sqrt{3}\pi", r"\frac{x^2}{2}-\pi\sqrt{3}"),
    (r"[0,1)\cup(2,\infty)", r"x \in (0,1)"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\{1,2\}"),
    ("(x-1)(x+1)=5", "y=x^2-1"),
    ("72", "72.5"),
)
_INTEGER = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)", re.ASCII)
_KNOWN_DIGITS, _MAX_DIGITS = 100, 1000  # to which numbers are known, and up to which two that differ are told apart
_ROUNDED, _SHARE = 5e-7, 1e-4  # what a decimal may differ by, and the share of it: more than what rounding hides
_SIDES = re.compile(r"=|\\(?:approx|equiv)(?![a-zA-Z])")
_APPROX = r"\approx"
_ABOUT = 0.05  # of a number: what the sides of this may differ by
_BASE = re.compile(r"\d_\{?(\d+)")
_QUOTIENT = re.compile(r"[/:](?=[^A-Za-z]*\d)|\\[dtc]?frac|\\over(?![a-z])|\\div|\u00f7")
# By brackets, which math-verify may read as a sum, or by a sign of division.
_PRODUCT = re.compile(r"[\d)]\s*\((?!10\s*[\^)])|\)\s*(?:\d|\\[dtc]?frac)|\\div|\u00f7")
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
    grader.sympy_symbolic_eq = lambda gold, found: not _is_number(gold) and by_formula(_rooted(gold), _rooted(found))
    for pair in _WARM_UP:
        grade_math(*pair)
    forbid_code("sympy.parsing")


def grade_text(response: str, answer: str) -> tuple[str, float, str]:
    """Find the answer, and grade what needs no mathematics: no answer, equal texts, whole numbers.

    Returns the outcome (pass, fail, no_answer, unreadable, or "" if that is for `grade_math` to say), points in [0, 1],
    and what was found in the response.
    """
    found = find_answer(response)
    if found is None:
        return "no_answer", 0.0, ""
    if len(found) > MAX_ANSWER_CHARS or _depth(found) > MAX_DEPTH:
        return "unreadable", 0.0, "it is too long, or nested too deeply"
    answers = (math_text.clean(found), _expected(answer))
    if math_text.is_same_text(*answers):
        return "pass", 1.0, found
    texts = [math_text.as_text(text) for text in answers]
    if all(map(_INTEGER.fullmatch, texts)):
        is_right = len({int(text.replace(",", "")) for text in texts}) == 1
        return "pass" if is_right else "fail", float(is_right), found
    return "", 0.0, found


def grade_math(found: str, answer: str) -> tuple[str, float, str]:
    """Outcome (pass, fail), points, and the answer that `grade_text` found."""
    is_right = is_equal(*math_text.without_modulus(math_text.clean(found), _expected(answer)))
    return "pass" if is_right else "fail", float(is_right), found


_SHORT_WORD = re.compile(r"[IVXLCDM]{2,}|[A-Z]{3,}|[A-Za-z]?[bcdfghjklmnpqrstvwxyz][aeiou][a-z]|yes|no|on|in")
_PRIME = re.compile(r"'(?!\d{3})|\\prime")


def is_equal(found: str, expected: str) -> bool:
    """Whether math-verify finds two answers equal, which differ as text."""
    text = math_text.as_text(expected)
    if math_text.is_words(text) or _SHORT_WORD.fullmatch(text):  # to it a word is a product of letters, in any order
        return False
    if expected.lstrip().startswith(r"\{") and found.lstrip().startswith("("):  # to it a pair is a set
        return False
    if len(_PRIME.findall(found)) != len(_PRIME.findall(expected)):  # it drops them
        return False
    if math_text.is_written(text):
        return math_text.as_text(found).casefold().removesuffix(" am").removesuffix(" pm") == text.casefold()
    if math_text.is_compound(found) or math_text.is_compound(expected):
        return math_text.is_same_compound(found, expected)
    bases = set(_BASE.findall(found))  # math-verify drops them
    if bases and bases != set(_BASE.findall(expected) or ["10"]):
        return False
    if math_text.says_another_number(found, expected) or _has_unequal_sides(found, expected):
        return False
    gold, other = _read(expected), _read(found)
    if not gold or not other or not verify(gold, other):
        return False
    if _numbers_in(gold[0]) and _has_result(expected, gold) and not _has_result(found, gold):
        return False
    return "=" not in expected or not any(verify(gold, _read(nonsense)) for nonsense in _NONSENSE)


def _has_result(answer: str, gold: list[Any]) -> bool:
    """Whether a side of an answer is the expected number, and no calculation of it."""
    sides = ((side, _read(side)[:1]) for side in _SIDES.split(answer))
    return any(value and _is_worked_out(side, value[0]) and verify(gold, value) for side, value in sides)


def is_same_number(gold: Any, found: Any) -> bool:
    """Whether two values are equal, exactly; a decimal may be a rounded one, and `28%` is 28 as well as 0.28."""
    from sympy import Integer, Rational, UnevaluatedExpr

    plain = [value.xreplace({UnevaluatedExpr(Rational(1, 100)): Integer(1)}) for value in (gold, found)]
    is_one_share = (plain[0] == gold) != (plain[1] == found)
    for one, other in [(gold, found), plain][: 1 + is_one_share]:
        gap, size = _gap(one, other)
        is_decimal = any(number.is_Float for value in (one, other) for number in _numbers_in(value))
        if gap == 0 or (is_decimal and gap <= min(_ROUNDED, _SHARE * size)):
            return True
    return False


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
    """What two numbers differ by, 0 if `_MAX_DIGITS` of it do not tell, and their mean size; of formulas inf or 0."""
    one, other = _exact(one), _exact(other)
    gap = (one - other).evalf(_KNOWN_DIGITS, maxn=_MAX_DIGITS)
    if not gap.is_number or gap.is_finite is False:
        return 0 if (one - other).evalf() == 0 else math.inf, 0
    parts = [abs(part) for part in gap.as_real_imag() if part.is_Integer or part._prec > 1]
    return sum(parts), ((abs(one) + abs(other)) / 2).evalf()


def _has_unequal_sides(found: str, expected: str) -> bool:
    r"""Whether numbers said to be equal, or about equal, are not: math-verify takes one (`31 \approx 47`, `6 = 5`)."""
    if _APPROX in expected or "=" in expected or not (_APPROX in found or "=" in found):
        return False
    parts = [[side for side in part.split("=") if not _PRODUCT.search(side)] for part in found.split(_APPROX)]
    equal = [[number for side in sides for number in _number(side)] for sides in parts]
    gaps = itertools.starmap(_gap, itertools.combinations(itertools.chain(*equal), 2))
    return any(not is_same_number(some[0], one) for some in equal for one in some) or any(
        gap > _ABOUT * size for gap, size in gaps
    )


def _number(side: str) -> list[Any]:
    """The number that a side of an answer is, of equations the right side, or nothing."""
    values = [getattr(value, "rhs", value) for value in _read(side)[:1]]
    return list(filter(_is_number, values))


def _is_number(value: Any) -> bool:
    return getattr(value, "is_number", False) and value.is_finite


def _expected(answer: str) -> str:
    marked = find_marked(answer)
    return math_text.clean(answer if marked is None else marked)


def _depth(text: str) -> int:
    depths = itertools.accumulate(("([{".find(mark) >= 0) - (")]}".find(mark) >= 0) for mark in text)
    return max(depths, default=0)


def verify(gold: list[Any], found: list[Any]) -> bool:
    """math-verify's comparison, whose limits of time are those of this process."""
    import math_verify

    return math_verify.verify(gold, found, timeout_seconds=None, allow_set_relation_comp=True)


def _read(answer: str) -> list[Any]:
    import math_verify

    share = answer.endswith(r"\%")
    latex = f"${answer[:-2].rpartition('=')[2]}$%" if share else f"${answer}$"
    read = math_verify.parse(latex, (math_verify.LatexExtractionConfig(),), parsing_timeout=None)
    values = [value for value in read if not isinstance(value, str)]
    both = [answer.replace(r"\pm", one).replace(r"\mp", other) for one, other in ("+-", "-+")]
    if not values and both[0] != answer:  # it reads these signs outside fractions and roots alone
        return _read(", ".join(both))
    return values


def _is_worked_out(text: str, value: Any) -> bool:
    """Whether it is one number, and its text no product, no whole quotient, and no sign of a sign."""
    numbers = _numbers_in(value)
    text = re.sub(r"_(?:\{\w*\}|\w)", "", math_text.WITH_EXPONENT.sub("", text))  # nor counts a subscript
    if not numbers or text.count("-") != sum(bool(number < 0) for number in numbers) or _PRODUCT.search(text):
        return False
    if not all(number.is_Integer for number in numbers):
        return True
    written, wanted = re.sub(r"\D", "", text), "".join(str(abs(number)) for number in numbers)
    return not _QUOTIENT.search(text) and written in (wanted, f"1{wanted}")


def _numbers_in(value: Any) -> list[Any]:
    """The numbers that it is written with (-1, 3, 10 and 5 for `-3 * 10^5`); none if it is a calculation."""
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
