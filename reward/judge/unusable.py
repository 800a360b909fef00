"""What test code wants of the answer and never gets, so that no answer can pass it: what its text shows of that."""

import ast
from collections import Counter
from collections.abc import Iterator

from reward.judge.allowed import names_imported, path_of

_OF_FUNCTIONS = ("__call__", "__name__", "__qualname__")
# Types of which no value comes back from a call.
_MODULES = ("array", "enum", "io", "ipaddress", "itertools", "numpy", "re")
_TYPES = """
    Callable callable collections.abc.Callable enumerate filter map reversed types.BuiltinFunctionType
    types.FunctionType types.LambdaType types.MethodType typing.Callable zip
"""
_BRANCHES = (ast.If, ast.Match, ast.Try, ast.While)


def unusable_use(tree: ast.Module, functions: set[str]) -> str:
    """The first thing that test code wants and cannot come, as in "takes push of f", or "".

    Args:
        tree: the test code.
        functions: names that the answer is to define.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr not in _OF_FUNCTIONS:
            name = node.value.id
            if name in functions:
                return f"takes {node.attr} of {name}, of which there are only calls"
        if isinstance(node, ast.Call) and _is_call(node, functions & {"Solution"}) and not node.args + node.keywords:
            return "makes an object of class Solution, of which there are only calls (`Solution().name`)"
    imported = names_imported(tree)
    returned = _names_of_returned(tree, functions)
    for value, kinds in _types_wanted(tree):
        is_returned = _is_call(value, functions) or (isinstance(value, ast.Name) and value.id in returned)
        if is_returned and all(_never_comes(kind, imported) for kind in kinds):
            return f"wants {' or '.join(map(ast.unparse, kinds))} of what it returns"
    return ""


def _types_wanted(node: ast.AST) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    """Values and types that one must be of if the test is to pass."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and not isinstance(child, _BRANCHES):
            yield from _types_wanted(child)
    match node:
        case ast.Assert(test=ast.BoolOp(op=ast.And(), values=conditions)):
            pass
        case ast.Assert(test=condition) | ast.Expr(value=condition):
            conditions = [condition]
        case _:
            return
    for condition in conditions:
        match condition:
            case ast.Call(func=ast.Name("callable") as kind, args=[value]) if isinstance(node, ast.Assert):
                yield value, [kind]
            case ast.Call(func=ast.Attribute(attr="assertIsInstance"), args=[value, kind]):
                yield value, kind.elts if isinstance(kind, ast.Tuple) else [kind]
            case ast.Call(func=ast.Name("isinstance"), args=[value, kind]) if isinstance(node, ast.Assert):
                yield value, kind.elts if isinstance(kind, ast.Tuple) else [kind]


def _never_comes(kind: ast.expr, imported: dict[str, str]) -> bool:
    path = path_of(kind, imported)
    return path.partition(".")[0] in _MODULES or (path or getattr(kind, "id", "")) in _TYPES.split()


def _names_of_returned(tree: ast.Module, functions: set[str]) -> set[str]:
    """Names that have nothing but what calls of the answer return."""
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_call(node.value, functions)]
    returned = Counter(target.id for node in assigned for target in node.targets if isinstance(target, ast.Name))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    all_values = Counter(node.id for node in names)
    return {name for name, count in returned.items() if all_values[name] == count}


def _is_call(node: ast.expr, functions: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions
