"""Test code for LeetCode's `class Solution`, whose methods answers here may define as functions too."""

import ast
import re

_METHOD = re.compile(r"Solution(?:\(\))?\.(\w+)")


def without_class(fn_name: str) -> str:
    """The name in `Solution().name` or `Solution.name`; all others as they are."""
    found = _METHOD.fullmatch(fn_name)
    return found.group(1) if found else fn_name


def with_functions(test_code: str, tree: ast.Module) -> str:
    """The test code with `name` for `Solution().name`, if it defines none of both itself."""
    if "Solution" not in test_code:
        return test_code
    taken = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    taken |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    lines = test_code.encode().splitlines(keepends=True)
    for node in sorted(ast.walk(tree), key=lambda node: -getattr(node, "col_offset", 0)):  # later in a line first
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name("Solution"), args=[], keywords=[]), attr=name):
                if node.lineno == node.end_lineno and taken.isdisjoint((name, "Solution")):
                    line = lines[node.lineno - 1]
                    lines[node.lineno - 1] = line[: node.col_offset] + name.encode() + line[node.end_col_offset :]
    return b"".join(lines).decode()
