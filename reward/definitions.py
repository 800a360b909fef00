"""What a block of code holds: nothing to run, a session's transcript, or what defines a name."""

import ast
import builtins
import re
import sys
from collections.abc import Iterator

_BEFORE_CODE = re.compile(r"(?:[ \t\f]*(?:#[^\r\n]*)?[\r\n])*[ \t\f]*(?:#[^\r\n]*)?")
_PROMPT = ">>>"
_COMMANDS = ("!", "%", "$ ", "pip install ", "#")
"""What lines begin with that a shell or a notebook runs; comments may stand between them."""
_READS = re.compile(
    r"\binput\s*[(,)]|=\s*input\b|\bimport\s+input\b|\bstdin\b(?!\s*=[^=]|\.write\b|\.close\b|[\"'])|\b__stdin__\b"
    r"|\bfileinput\b|\b(?:f?d?open|read|FileIO|mmap)\s*\(\s*0\b|/dev/(?:stdin|fd/0)"
)
"""What reads standard input, or names what does (`read = input`); `sys.stdin = ...` gives it another."""
_GIVES_ANOTHER, _KEEPS = re.compile(r"\bstdin\s*=[^=]"), re.compile(r"=\s*(?:sys\s*\.\s*)?stdin\s*$", re.M)
"""What a harness does around a program's function: `old = sys.stdin`, then `sys.stdin = ...`."""
_WRITES = re.compile(r"\bprint\b|write|stdout")
_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.M)
_MODULES = {*sys.stdlib_module_names, "numpy"}
"""Imports from elsewhere are of the answer itself: `from solution import f`."""


def parsed(text: str) -> ast.Module | None:
    """Its tree, or None if it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # all of them mean that the text is no program
        return None


def is_program(code: str) -> bool:
    """Whether there is more in it than comments and commands, and it does not begin as a transcript (`>>> f(1)`)."""
    before = _BEFORE_CODE.match(code)
    start = before.end() if before else 0
    if start == len(code) or code.startswith(_PROMPT, start):
        return False
    return not all(line.startswith(_COMMANDS) for line in map(str.lstrip, code.splitlines()) if line)


def shows_values(code: str) -> bool:
    """Whether it only shows values, as a program's output does: expressions that call nothing."""
    tree = parsed(code)
    if tree is None or not all(isinstance(statement, ast.Expr) for statement in tree.body):
        return False
    return not any(isinstance(node, ast.Call) for node in ast.walk(tree))


def is_filter(code: str) -> bool:
    """Whether it seems to read standard input and to write; what a line of comment says of it does not count."""
    code = _COMMENT_LINE.sub("", code)
    reading = _KEEPS.sub("", code) if _GIVES_ANOTHER.search(code) else code
    return _READS.search(reading) is not None and _WRITES.search(code) is not None


def defines(code: str, name: str) -> bool:
    """Whether it gives the name a meaning: a definition, a class with a method of the name, an assignment, an import.

    A function without a body, what a call of the name itself returns, and imports of the answer give none. Where it
    does not compile, as an answer that was cut short, a line that begins so does.
    """
    if name not in code:
        return False
    tree = parsed(code)
    if tree is None:
        begins = rf"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+){name}\b|^{name}[ \t]*(?::[^=\n]*)?=(?!=)"
        return re.search(begins, code, re.M) is not None
    statements = list(_statements(tree))
    known = _known_names(statements)
    return any(name in _names(node, known) for node in statements)


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of the module, also under `if`, `try` and the like, and of its classes, but none of functions."""
    nodes: list[ast.AST] = list(tree.body)
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            nodes += [] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ast.iter_child_nodes(node)


def _known_names(statements: list[ast.stmt]) -> set[str]:
    """Names that a block itself gives a meaning, and the library's: what has others belongs to another block."""
    known = {*dir(builtins), *_MODULES}
    for _ in range(2):  # a name may be used in front of the `try` that imports it, as statements are in order of depth
        for statement in statements:
            if not isinstance(statement, ast.Assign) or _names_read(statement.value) <= known:
                known.update(_names(statement, known))
    return known


def _names(statement: ast.stmt, known: set[str]) -> list[str]:
    """What a statement defines."""
    match statement:
        case ast.FunctionDef(name=name, body=body) | ast.AsyncFunctionDef(name=name, body=body):
            return [] if all(map(_says_nothing, body)) else [name]
        case ast.ClassDef(name=name):
            return [name]
        case ast.ImportFrom(module=module, names=names):
            return [alias.asname or alias.name for alias in names if _is_known(module or "")]
        case ast.Import(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names if _is_known(alias.name)]
        case ast.Assign(targets=targets, value=value):
            nodes = (node for target in targets for node in ast.walk(target))
            stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
            read = _names_read(value) | _attributes_read(value, known)
            return [name for name in stored if name not in read]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _MODULES


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether it is what a function's body is left out with."""
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False


def _names_read(value: ast.expr) -> set[str]:
    """Names that an expression reads when it is evaluated: none of a lambda's body."""
    return {node.id for node in _evaluated(value) if isinstance(node, ast.Name)}


def _attributes_read(value: ast.expr, known: set[str]) -> set[str]:
    """Attributes that it reads of what is not known, as of `Solution()` in another block."""
    owners: dict[ast.AST, str] = {}  # the names that chains of attributes, calls and items begin with
    read = set()
    for node in reversed(_evaluated(value)):  # what a chain begins with stands behind it
        match node:
            case ast.Name(id=name):
                owners[node] = name
            case ast.Attribute(value=owner) | ast.Call(func=owner) | ast.Subscript(value=owner) if owner in owners:
                owners[node] = owners[owner]
                if isinstance(node, ast.Attribute) and owners[node] not in known:
                    read.add(node.attr)
    return read


def _evaluated(value: ast.expr) -> list[ast.AST]:
    nodes: list[ast.AST] = [value]
    for node in nodes:
        nodes += [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
    return nodes
