"""What LeetCode's platform does for its solutions: names that are there without import, and class Solution."""

import importlib
from collections.abc import Callable

# Names that LeetCode's platform imports for its solutions, which APPS's call-based problems come from.
LEETCODE_NAMES = {
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
    "functools": ("cache", "lru_cache", "reduce", "cmp_to_key"),
    "heapq": ("heapify", "heappop", "heappush", "heappushpop", "nlargest", "nsmallest"),
    "itertools": ("accumulate", "chain", "combinations", "groupby", "pairwise", "permutations", "product"),
    "math": ("ceil", "comb", "floor", "gcd", "inf", "isqrt", "lcm", "sqrt"),
    "bisect": ("bisect", "bisect_left", "bisect_right", "insort"),
    "typing": ("Any", "Dict", "List", "Optional", "Set", "Tuple", "Union"),
}
LEETCODE_MODULES = (
    "bisect",
    "collections",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "random",
    "re",
    "string",
)


def ready_names(source: str) -> dict[str, object]:
    """Those of LeetCode's ready names that the source mentions."""
    namespace: dict[str, object] = {
        name: importlib.import_module(name) for name in LEETCODE_MODULES if f"{name}." in source
    }
    for module, names in LEETCODE_NAMES.items():
        for name in names:
            if name in source:
                namespace[name] = getattr(importlib.import_module(module), name)
    return namespace


def find_function(namespace: dict, fn_name: str, *, has_class: bool = True) -> Callable:
    """The method of class Solution if there may be and is one, else the function.

    Raises:
        NameError: the code defines neither.
    """
    solution = namespace.get("Solution")
    if has_class and solution is not None and hasattr(solution, fn_name):
        return getattr(solution(), fn_name)
    if fn_name not in namespace:
        raise NameError(f"the code does not define {fn_name}")
    return namespace[fn_name]
