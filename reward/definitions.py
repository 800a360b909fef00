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
    r"\binput\s*[(,)]|=\s*input\b|\bstdin\b(?!\s*=[^=])|\bfileinput\b|\b(?:open|read)\s*\(\s*0\b|/dev/(?:stdin|fd/0)"
)
"""What reads standard input, or names what does (`read = input`); `sys.stdin = ...` gives it another."""
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


def reads_input(code: str) -> bool:
    """Whether it seems to read standard input; what a line of comment says of it does not count."""
    return _READS.search(_COMMENT_LINE.sub("", code)) is not None


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
            read = _names_read(value)
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
    """Names that an expression reads when it is evaluated, those of attributes too: none of a lambda's body."""
    nodes: list[ast.AST] = [value]
    for node in nodes:
        nodes += [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute) and not _is_of_library(node)}


def _is_of_library(value: ast.Attribute) -> bool:
    """Whether it is what a known module or a built-in type has, as `math.gcd` and `str.upper`."""
    owner: ast.AST = value
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return isinstance(owner, ast.Name) and (owner.id in _MODULES or hasattr(builtins, owner.id))
