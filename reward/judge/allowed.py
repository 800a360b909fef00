"""What test code may use: tests of functions need no threads, processes, signals, files or sockets.

These would outlive a call, break it off, or end the judge. Nor may a text of the answer's be run as code, or name a
file, as `eval(f(3))` and `np.load(f(3))` have it. The threat is careless data, not malice.
"""

import ast
from collections.abc import Iterator

_MODULES = """
    __future__ abc array ast asyncio base64 binascii bisect calendar cmath collections colorsys contextlib copy csv
    dataclasses datetime decimal difflib enum fractions functools graphlib hashlib heapq hmac html io ipaddress
    itertools json keyword math numbers numpy operator pprint pytest random re reprlib secrets statistics
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
    "timeit": "default_timer",
}
_RUNS_TEXT = "ForwardRef evaluate_forward_ref get_type_hints"
_NOT = {
    "contextlib": "redirect_stderr redirect_stdout",  # nothing that the answer prints is there, nor its warnings
    "numpy": """
        DataSource ctypeslib distutils f2py fromfile fromregex genfromtxt load loadtxt memmap recfromcsv recfromtxt
        save savetxt savez savez_compressed
    """,
    "numpy.lib": "DataSource format npyio",
    "numpy.testing": "measure rundocs runstring",
    "pytest": "deprecated_call main warns",  # `main` looks for tests in files
    "typing": _RUNS_TEXT,
    "typing_extensions": _RUNS_TEXT,
    "unittest": "main mock",  # what is patched is not there for the answer
}
_NAMES = "__builtins__ __import__ __loader__ __spec__ breakpoint compile eval exec globals input open"
_ATTRIBUTES = """
    __builtins__ __globals__ __import__ __loader__ __subclasses__ assertLogs assertWarns assertWarnsRegex
    run_in_executor
"""
_EXPECT_ERRORS = ("assertRaises", "assertRaisesRegex", "raises")


def refused_use(tree: ast.Module, own_names: set[str], modules: set[str]) -> str:
    """The first thing that test code does and may not, as in "imports threading", or "".

    Args:
        tree: the test code.
        own_names: what it defines, or takes from the answer, whatever else has these names.
        modules: those that it uses without importing them.
    """
    for node in ast.walk(tree):
        for path in _imports(node):
            if not is_allowed(path):
                is_module = isinstance(node, ast.ImportFrom) and not is_allowed(path.rpartition(".")[0])
                return f"imports {path.rpartition('.')[0] if is_module else path}"
    imported = {name: name for name in modules} | names_imported(tree)
    stars = [path[:-2] for node in ast.walk(tree) for path in _imports(node) if path.endswith(".*")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in set(_NAMES.split()) - own_names:
            return f"uses {node.id}"
        if isinstance(node, ast.Attribute) and node.attr in _ATTRIBUTES.split():
            return f"uses {node.attr}"
        if isinstance(node, ast.Name) and node.id in modules and not is_allowed(node.id):
            return f"uses {node.id}"
        paths = [path := path_of(node, imported)]
        if isinstance(node, ast.Name):
            paths += [f"{module}.{node.id}" for module in stars]
        for path in paths:
            if path and not is_allowed(path) and is_allowed(path.partition(".")[0]):
                return f"uses {path}"
        if path in ("sys.stderr", "sys.stdout") and isinstance(getattr(node, "ctx", None), ast.Store):
            return f"sets {path}"  # nothing that the answer prints is there
        if error := _foreign_error(node, imported):
            return f"expects {error}"
    return next((f"sets {name}" for name in ("input", "print") if _is_for_others(name, tree)), "")


def names_imported(tree: ast.Module) -> dict[str, str]:
    """By the name that test code has for it, what of a module it imports, as in `math.pi`."""
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        imported.update(_meanings(node))
    return imported


def _is_for_others(name: str, tree: ast.Module) -> bool:
    """Whether the test code gives a name a meaning that it does not use itself: it is none for the answer."""
    outer = [node for node in ast.walk(tree) if not isinstance(node, ast.ClassDef)]  # methods are no such names
    inner = [child for node in outer for child in ast.iter_child_nodes(node)]
    stored = any(isinstance(node, ast.FunctionDef) and node.name == name for node in inner)
    uses = [node.ctx for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return (stored or bool(uses)) and not any(isinstance(use, ast.Load) for use in uses)


def modules_imported(tree: ast.Module) -> set[str]:
    """Modules that test code imports and may."""
    paths = [path for node in ast.walk(tree) for path in _imports(node) if is_allowed(path)]
    return {module for path in paths for module in MODULES if f"{path}.".startswith(f"{module}.")}


def is_allowed(path: str) -> bool:
    """Whether a module, or what is in it, may be used."""
    parts = path.split(".")
    module, *names = parts
    if module not in MODULES:
        return ".".join(parts[:2]) in MODULES or (path in _parents() and not names)
    if not names or names[0] == "__name__":
        return True
    if module in _ONLY:
        return names[0] in _ONLY[module].split()
    return not any(parts[at] in _NOT.get(".".join(parts[:at]), "").split() for at in range(1, len(parts)))


def _foreign_error(node: ast.AST, imported: dict[str, str]) -> str:
    """What a statement expects of the answer and never comes: a library's exception, warnings; or ""."""
    if isinstance(node, ast.Call):
        if path_of(node.func, imported) == "warnings.catch_warnings" and node.keywords:
            return "warnings"
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        wanted = node.args[:1] if name in _EXPECT_ERRORS else []
        return path_of(wanted[0], imported).removeprefix("asyncio.TimeoutError") if wanted else ""
    if isinstance(node, ast.Try):
        calls = [call for part in node.body for call in ast.walk(part) if isinstance(call, ast.Call)]
        own = {path_of(call.func, imported).partition(".")[0] for call in calls}
        errors = [path_of(handler.type, imported) for handler in node.handlers if handler.type is not None]
        if errors and all(errors) and len(errors) == len(node.handlers):
            return next((error for error in errors if error.partition(".")[0] not in {*own, "asyncio"}), "")
    return ""


def _meanings(node: ast.AST) -> dict[str, str]:
    """What an import gives names to, by name."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or top: alias.name if alias.asname else top
            for alias in node.names
            for top in [alias.name.partition(".")[0]]
        }
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*"}
    return {}


def path_of(node: ast.AST, imported: dict[str, str]) -> str:
    """What an expression takes of a module, as in `math.pi`, or ""; `imported` as `names_imported` gives it."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, "")
    if isinstance(node, ast.Attribute) and (base := path_of(node.value, imported)):
        return f"{base}.{node.attr}"
    return ""


def _imports(node: ast.AST) -> Iterator[str]:
    """What a statement imports, as in `math.isclose`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from (f"{module}.{alias.name}" for alias in node.names)


def _parents() -> set[str]:
    """Packages of which a module may be used, but not all."""
    return {name.partition(".")[0] for name in MODULES if "." in name}
