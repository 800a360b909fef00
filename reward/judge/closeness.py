"""numpy's comparisons as test code sees them: an empty array is never close to one with items.

numpy stretches a number to the shape of what it is compared with, and where that is empty nothing is compared:
`np.allclose([], 0.5)` is true. All other shapes are left to numpy.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any


@functools.cache  # once in a process
def make_empty_differ() -> None:
    """Let it be so in this process, which has loaded numpy, and of `numpy.testing` what it has loaded."""
    numpy: Any = sys.modules["numpy"]
    numpy.allclose = _unless_empty(numpy.allclose, lambda _: False)
    numpy.isclose = _unless_empty(numpy.isclose, lambda other: numpy.full(numpy.shape(other), False)[()])
    numpy.array_equiv = _unless_empty(numpy.array_equiv, lambda _: False)
    testing: Any = sys.modules.get("numpy.testing")
    if testing:
        testing.assert_array_almost_equal_nulp = _unless_empty(testing.assert_array_almost_equal_nulp, _fail)
        # What the others compare by; its arguments begin with a function.
        shared = testing.assert_array_equal.__globals__
        shared["assert_array_compare"] = _unless_empty(shared["assert_array_compare"], _fail, at=1)


def _unless_empty(compare: Callable[..., Any], instead: Callable[[Any], Any], at: int = 0) -> Callable[..., Any]:
    """A comparison of two of its arguments, from this place on; `instead` is given the one that is not empty."""
    numpy = sys.modules["numpy"]
    signature = inspect.signature(compare)

    @functools.wraps(compare)
    def compare_items(*positional: Any, **keywords: Any) -> Any:
        result = compare(*positional, **keywords)
        if result is None or numpy.all(result):
            first, second, *_ = list(signature.bind(*positional, **keywords).arguments.values())[at:]
            num_first, num_second = numpy.size(first), numpy.size(second)
            if (num_first == 0) != (num_second == 0):
                return instead(second if num_first == 0 else first)
        return result

    return compare_items


def _fail(_: Any) -> None:
    raise AssertionError("an empty array is compared with one that has items")
