r"""Is a number worked out? `2 + 6` is 8, but whoever repeats the question's sum has not answered it.

math-verify takes both for equal, and a policy that is rewarded for it stops answering: it repeats. What it has read is
still a sum, a product, a power or a root; only quotients of whole numbers, doubled signs and numbers side by side (it
reads `2 4` as 6, and `(2)(1/4)` as 2.25) are gone from it, and for those the text is asked.
"""

import re
from typing import Any

_NOT_COUNTED = re.compile(  # texts with their exponents, and subscripts
    r"\\(?:text|textrm|textbf|textit|mathrm|mathit|mathbf|mbox)\s*\{(?:[^{}]|\{[^{}]*\})*\}(?:\s*\^(?:\{[^{}]*\}|\d))?"
    r"|_(?:\{\w*\}|\w)"
)
_SEPARATOR = re.compile(r"(?<=\d)(?:[\s{},']|\\[,;:! ])+(?=\d{3}(?!\d))")
_DIGITS = re.compile(r"\d+")
_QUOTIENT = re.compile(r"[/:](?=[^A-Za-z]*\d)|\\[dtc]?frac|\\over(?![a-z])|\\div|\u00f7")
_PRODUCT = re.compile(r"[\d)]\s*\((?!10\s*[\^)])|\)\s*(?:\d|\\[dtc]?frac)|\\div|\u00f7")


def is_number(value: Any) -> bool:
    """Whether what math-verify has read is one number: whole, decimal, a fraction, a share of 100, in powers of ten."""
    return bool(_numbers(value))


def is_product(text: str) -> bool:
    """Whether it multiplies by brackets, which math-verify may read as a sum, or divides by a sign."""
    return _PRODUCT.search(text) is not None


def is_worked_out(text: str, value: Any) -> bool:
    """Whether it is one number, and its text no product, no whole quotient, and no sign of a sign."""
    numbers = _numbers(value)
    text = _NOT_COUNTED.sub("", text)
    if not numbers or text.count("-") != sum(bool(number < 0) for number in numbers) or is_product(text):
        return False
    if not all(number.is_Integer for number in numbers):
        return True
    written = {int(digits) for digits in _DIGITS.findall(_SEPARATOR.sub("", text))}
    return not _QUOTIENT.search(text) and written - {1} == {abs(int(number)) for number in numbers} - {1}


def _numbers(value: Any) -> list[Any]:
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
