"""Test code's text, parsed and compiled once for all that looks at it: a megabyte of literals takes seconds."""

import ast
import functools
from types import CodeType

TESTS_FILE = "tests.py"
"""What test code is called in tracebacks."""
_LONG = 100  # items of a literal


@functools.lru_cache(maxsize=256)  # of the tests of a problem, each of which is tried often
def compiled(test_code: str) -> CodeType:
    """What is run: whatever the interpreter's options are, assertions count."""
    return compile(test_code, TESTS_FILE, "exec", dont_inherit=True, optimize=0)


@functools.lru_cache(maxsize=2)
def parsed(test_code: str) -> ast.Module:
    """What is looked at, which nobody changes; of long literals without the items in which no name is."""
    tree = ast.parse(test_code)
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and len(node.elts) > _LONG:
            node.elts = [item for item in node.elts if not _is_constant(item)]
        nodes.extend(ast.iter_child_nodes(node))
    return tree


def _is_constant(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Dict):
        return all(map(_is_constant, [*node.keys, *node.values]))
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(map(_is_constant, node.elts))
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)
