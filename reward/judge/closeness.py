"""numpy's comparisons as test code sees them: an empty array is never close to one with items.

numpy stretches a number to the shape of what it is compared with, and where that is empty nothing is compared:
`np.allclose([], 0.5)` is true. All other shapes are left to numpy.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

_ASSERTIONS = "assert_allclose assert_almost_equal assert_array_almost_equal assert_array_equal"


@functools.cache  # once in a process
def make_empty_differ() -> None:
    """Let it be so in this process, which has loaded numpy, and of `numpy.testing` what it has loaded."""
    numpy: Any = sys.modules["numpy"]
    numpy.allclose = _unless_empty(numpy.allclose, lambda _: False)
    numpy.isclose = _unless_empty(numpy.isclose, lambda other: numpy.full(numpy.shape(other), False)[()])
    if testing := sys.modules.get("numpy.testing"):
        for name in _ASSERTIONS.split():
            setattr(testing, name, _unless_empty(getattr(testing, name), _fail))


def _unless_empty(compare: Callable[..., Any], instead: Callable[[Any], Any]) -> Callable[..., Any]:
    """A comparison of its first two arguments; `instead` is given the one that is not empty."""
    numpy = sys.modules["numpy"]
    signature = inspect.signature(compare)

    @functools.wraps(compare)
    def compare_items(*positional: Any, **keywords: Any) -> Any:
        result = compare(*positional, **keywords)
        if result is None or numpy.all(result):
            first, second, *_ = signature.bind(*positional, **keywords).arguments.values()
            num_first, num_second = numpy.size(first), numpy.size(second)
            if (num_first == 0) != (num_second == 0):
                return instead(second if num_first == 0 else first)
        return result

    return compare_items


def _fail(_: Any) -> None:
    raise AssertionError("an empty array is compared with one that has items")
