"""What test code may use: tests of functions need no threads, processes, signals, files or sockets.

These would outlive a call, break it off, or end the judge. The threat is careless data, not malice.
"""

import ast
from collections.abc import Iterator

_MODULES = """
    __future__ abc array asyncio base64 binascii bisect calendar cmath collections colorsys contextlib copy csv
    dataclasses datetime decimal difflib enum fractions functools graphlib hashlib heapq hmac html io ipaddress
    itertools json keyword math numbers numpy operator pickle pprint pytest random re reprlib secrets statistics
    string struct sys textwrap time timeit traceback types typing typing_extensions unicodedata unittest
    urllib.parse warnings zlib zoneinfo
"""
MODULES = tuple(_MODULES.split())
"""Modules that test code may import, and all below them but what stands in `_NOT` or not in `_ONLY`."""
_ONLY = {
    "asyncio": """
        Event Lock Queue Semaphore TimeoutError create_task ensure_future gather get_event_loop iscoroutine
        iscoroutinefunction new_event_loop run set_event_loop sleep timeout wait wait_for
    """,
    "io": "BytesIO StringIO",
    "sys": """
        byteorder exit float_info getrecursionlimit getsizeof hash_info int_info maxsize maxunicode
        set_int_max_str_digits setrecursionlimit stderr stdout version version_info
    """,
}
_NOT = {
    "contextlib": "redirect_stderr redirect_stdout",  # nothing that the answer prints is there
    "pytest": "main",  # these look for tests in files
    "unittest": "main mock",  # what is patched is not there for the answer
}
_NAMES = frozenset(("__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "globals", "input", "open"))
_ATTRIBUTES = frozenset(("__builtins__", "__globals__", "__import__", "__loader__", "__subclasses__"))


def refused_use(tree: ast.Module, own_names: set[str], modules: set[str]) -> str:
    """The first thing that test code does and may not, as in "imports threading", or "".

    Args:
        tree: the test code.
        own_names: what it defines, or takes from the answer, whatever else has these names.
        modules: those that it uses without importing them.
    """
    imported = {name: name for name in modules}  # module by the name that test code has for it
    for node in ast.walk(tree):
        for path in _imports(node):
            if not _is_allowed(path):
                is_module = isinstance(node, ast.ImportFrom) and not _is_allowed(path.rpartition(".")[0])
                return f"imports {path.rpartition('.')[0] if is_module else path}"
        if isinstance(node, ast.Import):
            imported.update({alias.asname: alias.name for alias in node.names if alias.asname})
            imported.update({top: top for alias in node.names if not alias.asname for top in alias.name.split(".")[:1]})
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _NAMES - own_names:
            return f"uses {node.id}"
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES:
            return f"uses {node.attr}"
        if isinstance(node, ast.Name) and node.id in modules and not _is_allowed(node.id):
            return f"uses {node.id}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            path = f"{imported[node.value.id]}.{node.attr}"
            if _is_allowed(imported[node.value.id]) and not _is_allowed(path):
                return f"uses {path}"
    return ""


def _imports(node: ast.AST) -> Iterator[str]:
    """What a statement imports, as in `math.isclose`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _is_allowed(path: str) -> bool:
    """Whether a module, or what is in it, may be used."""
    module, *names = path.split(".")
    if module not in MODULES:
        return ".".join([module, *names[:1]]) in MODULES or (path in _parents() and not names)
    if not names or names[0] == "__name__":
        return True
    if module in _ONLY:
        return names[0] in _ONLY[module].split()
    return names[0] not in _NOT.get(module, "").split()


def _parents() -> set[str]:
    """Packages of which a module may be used, but not all."""
    return {name.partition(".")[0] for name in MODULES if "." in name}
