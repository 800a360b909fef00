"""Other ways to write a right program: a problem has many right answers, so that no refinement is the canonical one."""

import ast
import random

NAMES = ("x", "n", "value", "number")
"""What a single argument or variable may be called."""
SHARE = 0.5
"""Chance of each change that a program allows."""
COMMUTATIVE = (ast.Add, ast.Mult)


def vary(rng: random.Random, program: str) -> str:
    """Return a program that does the same: other names, operands exchanged, results named before they are returned."""
    tree = ast.parse(program)
    if rng.random() < SHARE:
        tree = _Rename("x", rng.choice(NAMES)).visit(tree)
    tree = _Swap(rng).visit(tree)
    if rng.random() < SHARE:
        tree = _name_result(tree)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(id=self.new, ctx=node.ctx) if node.id == self.old else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(arg=self.new) if node.arg == self.old else node


class _Swap(ast.NodeTransformer):
    """Exchanges the operands of sums and products of which one is a number: those of texts and lists do not commute."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.generic_visit(node)
        is_number = any(isinstance(side, ast.Constant) and isinstance(side.value, int) for side in _sides(node))
        if isinstance(node.op, COMMUTATIVE) and is_number and self.rng.random() < SHARE:
            node.left, node.right = node.right, node.left
        return node


def _sides(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _name_result(tree: ast.Module) -> ast.Module:
    """Give the value that the last line returns or prints a name first."""
    body = tree.body[-1].body if isinstance(tree.body[-1], ast.FunctionDef) else tree.body
    last = body[-1]
    name = ast.Name(id="result", ctx=ast.Load())
    if isinstance(last, ast.Return) and last.value is not None:
        value: ast.expr = last.value
        last.value = name
    elif isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and len(last.value.args) == 1:
        value = last.value.args[0]
        last.value.args = [name]
    else:
        return tree
    body.insert(-1, ast.Assign(targets=[ast.Name(id="result", ctx=ast.Store())], value=value))
    return tree
