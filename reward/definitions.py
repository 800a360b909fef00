"""What a block of code holds: nothing to run, a session's transcript, or what defines a name."""

import ast
import re
from collections.abc import Iterator

_BEFORE_CODE = re.compile(r"(?:[ \t\f]*(?:#[^\r\n]*)?[\r\n])*[ \t\f]*(?:#[^\r\n]*)?")
_PROMPT = ">>>"


def parsed(text: str) -> ast.Module | None:
    """Its tree, or None if it is no Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # all of them mean that the text is no program
        return None


def is_program(code: str) -> bool:
    """Whether there is more in it than comments, and it does not begin as a session's transcript (`>>> f(1)`)."""
    before = _BEFORE_CODE.match(code)
    start = before.end() if before else 0
    return start < len(code) and not code.startswith(_PROMPT, start)


def defines(code: str, name: str) -> bool:
    """Whether it gives the name a meaning: a definition, a class with a method of the name, an assignment, an import.

    Where it does not compile, as an answer that was cut short, a line that begins so does.
    """
    if name not in code:
        return False
    tree = parsed(code)
    if tree is None:
        begins = rf"^[ \t]*(?:(?:async[ \t]+)?def[ \t]+|class[ \t]+){name}\b|^{name}[ \t]*(?::[^=\n]*)?=(?!=)"
        return re.search(begins, code, re.M) is not None
    return any(name in _names(node) for node in _statements(tree))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Those of the module, also under `if`, `try` and the like, and of its classes, but none of functions."""
    nodes: list[ast.AST] = list(tree.body)
    for node in nodes:
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            nodes += [] if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else ast.iter_child_nodes(node)


def _names(statement: ast.stmt) -> list[str]:
    """What a statement defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name.partition(".")[0] for alias in names]
        case ast.Assign(targets=targets):
            nodes = (node for target in targets for node in ast.walk(target))
            return [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []
