"""Is a returned value right? Asked in a judge process, of values of exact built-in types.

The rule is evalplus's: Python's ``==``, and a tolerance where floats are expected. A few tasks need another one: the
question leaves open what the reference solution happens to choose.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

REL_TOLERANCE = 1e-7
FLOAT_TOLERANCE = 1e-6  # absolute, of expected floats where the task names no tolerance

Judge = Callable[[Any, Any, list[Any], float], bool]
"""(value, expected, arguments of the call, the task's absolute tolerance or 0) -> right?"""


def is_equal(value: Any, expected: Any, arguments: list[Any], atol: float) -> bool:
    """Return whether they are equal: ``(1, 2)`` is not ``[1, 2]``, but ``1`` is ``1.0``.

    Floats, and non-empty lists or tuples of nothing but floats, need only be close; with a tolerance of the task, any
    numbers in lists and tuples. Close is ``|value - expected| <= atol + 1e-7 |expected|``, between equal types.
    """
    if value == expected:
        return True
    tolerance = atol or (FLOAT_TOLERANCE if _is_floats(expected) else 0.0)
    return tolerance > 0 and type(value) is type(expected) and _is_close(value, expected, tolerance)


def is_root(value: Any, expected: Any, arguments: list[Any], atol: float) -> bool:
    """HumanEval/32 asks for any root of the polynomial whose coefficients are given, lowest degree first.

    Added up as the prompt's own ``poly`` does, since for some inputs the rounding decides.
    """
    (coefficients,) = arguments
    return abs(sum(c * math.pow(value, power) for power, c in enumerate(coefficients))) <= atol


def has_same_elements(value: Any, expected: Any, arguments: list[Any], atol: float) -> bool:
    """Some tasks ask for a collection of elements and name neither order nor type."""
    return set(value) == set(expected)


def is_equal_or_padded_distance(value: Any, expected: Any, arguments: list[Any], atol: float) -> bool:
    """Mbpp/558: numbers of unequal length can be lined up at their first digits, or at their last."""
    first, second = (str(argument) for argument in arguments)
    width = max(len(first), len(second))
    digits = zip(first.zfill(width), second.zfill(width), strict=True)
    return value == expected or value == sum(abs(int(a) - int(b)) for a, b in digits)


def is_equal_or_upright_surface(value: Any, expected: Any, arguments: list[Any], atol: float) -> bool:
    """Mbpp/581: the pyramid's height can be that of its sides, or that of its top above the base (then rounded)."""
    base, height = arguments
    if is_equal(value, expected, arguments, atol):
        return True
    return abs(value - round(base**2 + 2 * base * math.hypot(base / 2, height))) <= atol


JUDGES: dict[str, Judge] = {
    "HumanEval/32": is_root,
    "Mbpp/2": has_same_elements,
    "Mbpp/7": has_same_elements,
    "Mbpp/111": has_same_elements,
    "Mbpp/140": has_same_elements,
    "Mbpp/232": has_same_elements,
    "Mbpp/579": has_same_elements,
    "Mbpp/769": has_same_elements,
    "Mbpp/558": is_equal_or_padded_distance,
    "Mbpp/581": is_equal_or_upright_surface,
}

PRESENCE_TASKS = ("Mbpp/737", "Mbpp/787", "Mbpp/794")
"""Tasks whose reference returns a match object or None, and whose tests only ask whether there is one."""


@dataclass(slots=True, kw_only=True, frozen=True)
class TaskJudge:
    """What judges the value of one call; it is sent to the process that judges, so it can be pickled."""

    task_id: str
    expected: Any  # what the reference solution returned
    arguments: list[Any]  # of the call
    atol: float  # the task's absolute tolerance; 0: none, but for expected floats

    def __call__(self, value: Any) -> bool:
        """Whether the value, of any type and depth, is right."""
        judge = JUDGES.get(self.task_id, is_equal)
        try:
            return judge(value, self.expected, self.arguments, self.atol)
        except (TypeError, ValueError, ArithmeticError, RecursionError):  # untrusted
            return False


def _is_floats(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def _is_close(value: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, (list, tuple)):
        return (
            type(value) is type(expected)
            and len(value) == len(expected)
            and all(_is_close(*pair, tolerance) for pair in zip(value, expected, strict=True))
        )
    if value == expected:
        return True
    if not (isinstance(value, (int, float, complex)) and isinstance(expected, (int, float, complex))):
        return False
    difference = abs(value - expected)
    return math.isfinite(difference) and difference <= tolerance + REL_TOLERANCE * abs(expected)
