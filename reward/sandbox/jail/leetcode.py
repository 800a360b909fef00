"""Conventions of LeetCode's platform: names that need no import, and the class Solution."""

import builtins
import importlib
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

# As LeetCode has it all public names of these modules are there; where two have a name, the later one's.
_STARRED = re.findall(r"\w+", "typing string re collections heapq bisect copy random operator math itertools functools")
_MODULES = {name: importlib.import_module(name) for name in (*_STARRED, "datetime", "statistics", "json", "sys")}
_READY: dict[str, object] = {}  # made once, before any call
exec("\n".join(f"from {name} import *" for name in _STARRED), _READY)
exec(
    """
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
class ListNode:
    def __init__(self, val=0, next=None): self.val, self.next = val, next
class TreeNode:
    def __init__(self, val=0, left=None, right=None): self.val, self.left, self.right = val, left, right
""",
    _READY,
)
_MAX_DEPTH = 50_000
_STACK_BYTES = 1 << 28


def ready_names(source: str, fn_name: str) -> dict[str, object]:
    """Return LeetCode's ready names that the source mentions, except `fn_name`, which it has to define itself.

    A name means the module if the source uses an attribute that the module has: `bisect` in `bisect.bisect_left` is
    the module, and `datetime` in `datetime.strptime` is the class.
    """
    mentioned = set(re.findall(r"\w+", source)) - builtins.__dict__.keys() - {fn_name}
    namespace = {name: _READY[name] for name in mentioned & _READY.keys()}
    for name in mentioned & _MODULES.keys():
        taken = re.findall(rf"\b{name}\s*\.\s*([a-zA-Z]\w*)", source)
        if any(hasattr(_MODULES[name], word) for word in taken):
            namespace[name] = _MODULES[name]
    return namespace


def allow_depth() -> None:
    """Allow functions to recurse as deeply as LeetCode's solutions do, also through functions written in C."""
    sys.setrecursionlimit(_MAX_DEPTH)
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES if hard < 0 else min(_STACK_BYTES, hard), hard))


def find_function(namespace: dict, fn_name: str) -> Callable:
    """Return the function, or where the code defines none, the method of its class Solution.

    A function that the code imported, such as `merge` by `from heapq import *`, comes last. NameError if none is found.
    """
    function: Any = namespace.get(fn_name)
    if getattr(function, "__module__", None) == namespace["__name__"]:
        return function
    solution = namespace.get("Solution")
    if solution is not None and hasattr(solution, fn_name):
        return getattr(solution(), fn_name)
    if fn_name in namespace:
        return namespace[fn_name]
    raise NameError(f"the code does not define {fn_name}")
