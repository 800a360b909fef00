"""What LeetCode's platform does for its solutions: names that are there without import, and class Solution."""

import builtins
import importlib
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

# As LeetCode has it all public names of these modules are there; where two have a name, the later one's.
_NAMES_OF = (
    "typing",
    "string",
    "re",
    "collections",
    "heapq",
    "bisect",
    "copy",
    "random",
    "operator",
    "math",
    "itertools",
    "functools",
)
# Of modules that few answers need and that take long to load.
_SELECTED = {
    "datetime": ("date", "datetime", "timedelta"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "statistics": (),
}
_MODULES = (*_NAMES_OF, *_SELECTED, "json", "sys")
_READY: dict[str, object] = {}  # made once, before any call
for _module in map(importlib.import_module, _NAMES_OF):
    _public = getattr(_module, "__all__", None) or [name for name in vars(_module) if name[0] != "_"]
    _READY |= {name: getattr(_module, name) for name in _public}


class ListNode:
    """LeetCode's node of a linked list."""

    def __init__(self, val: object = 0, next: object = None) -> None:  # noqa: A002
        """Make one node."""
        self.val, self.next = val, next


class TreeNode:
    """LeetCode's node of a binary tree."""

    def __init__(self, val: object = 0, left: object = None, right: object = None) -> None:
        """Make one node."""
        self.val, self.left, self.right = val, left, right


_READY |= {"ListNode": ListNode, "TreeNode": TreeNode}
_MAX_DEPTH = 50_000
_STACK_BYTES = 1 << 28


def ready_names(source: str, fn_name: str) -> dict[str, object]:
    """Those of LeetCode's ready names that the source mentions, but for that of the function which it is to define.

    A name is a module's where the source takes what is in that, as in `bisect.bisect_left`, not `datetime.strptime`.
    """
    mentioned = set(re.findall(r"\w+", source)) - builtins.__dict__.keys() - {fn_name}
    namespace = {name: _READY[name] for name in mentioned & _READY.keys()}
    for module, names in _SELECTED.items():
        for name in mentioned.intersection(names):
            namespace[name] = getattr(importlib.import_module(module), name)
    for module in mentioned.intersection(_MODULES):
        taken = re.findall(rf"\b{module}\s*\.\s*([a-zA-Z]\w*)", source)
        if any(hasattr(importlib.import_module(module), name) for name in taken):
            namespace[module] = sys.modules[module]
    return namespace


def names_need_library(source: str) -> bool:
    """Whether the ready names that the source mentions may be of modules that few programs import."""
    mentioned = set(re.findall(r"\w+", source))
    return any(not mentioned.isdisjoint((module, *names)) for module, names in _SELECTED.items())


def allow_depth() -> None:
    """Let functions call themselves as deep as LeetCode's solutions do, also by way of functions written in C."""
    sys.setrecursionlimit(_MAX_DEPTH)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES if hard < 0 else min(_STACK_BYTES, hard), hard))


def find_function(namespace: dict, fn_name: str, *, has_class: bool = True) -> Callable:
    """The function, or where the code defines none and may have a class Solution, its method.

    What the code has imported, as `from heapq import *` does with `merge`, comes last.

    Raises:
        NameError: the code defines neither.
    """
    function: Any = namespace.get(fn_name)
    if getattr(function, "__module__", None) == namespace["__name__"]:
        return function
    solution = namespace.get("Solution")
    if has_class and solution is not None and hasattr(solution, fn_name):
        return getattr(solution(), fn_name)
    if fn_name in namespace:
        return namespace[fn_name]
    raise NameError(f"the code does not define {fn_name}")
