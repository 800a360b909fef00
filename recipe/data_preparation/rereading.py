"""Tests that read items of an argument after the answer's function has had it, and may have changed it."""

import ast
from bisect import bisect_left
from collections import defaultdict

from reward.judge.assertions import names_of_the_answer
from reward.judge.source import parsed
from reward.solution_class import with_functions

_Position = tuple[int, int]  # line, column


def argument_read_again(test_code: str, fn_name: str | None) -> str:
    """The first variable whose items are read behind a call of the answer that was given it, or "".

    Example: `i, j = f(a, t); assert a[i] + a[j] == t` passes an answer that sorts `a` in place and gives positions in
    that. Items that are themselves compared (`a[:k] == [1, 2]`) may be what the answer is to change.
    """
    test_code = with_functions(test_code, ast.parse(test_code))
    nodes, functions = list(ast.walk(parsed(test_code))), set(names_of_the_answer(test_code, fn_name))
    compared = {id(side) for node in nodes if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)}
    bound: defaultdict[str, list[_Position]] = defaultdict(list)  # where it gets a value
    given: defaultdict[str, list[_Position]] = defaultdict(list)  # where calls that were given it end
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound[name].append((node.lineno, node.col_offset))
            case ast.Call(func=ast.Name(id=function), args=arguments) if function in functions:
                for name in {value.id for value in arguments if isinstance(value, ast.Name)}:
                    given[name].append((node.end_lineno or 0, node.end_col_offset or 0))
    positions = {name: (sorted(bound[name]), sorted(ends)) for name, ends in given.items()}
    for node in nodes:
        match node:
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Load()) if name in positions:
                bindings, ends = positions[name]
                start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
                if bisect_left(ends, start) < bisect_left(ends, end):  # `a[f(a, x)] == x`
                    return name
                last = bindings[: bisect_left(bindings, start)][-1:] or [(0, 0)]
                if id(node) not in compared and bisect_left(ends, last[0]) < bisect_left(ends, start):
                    return name
    return ""
