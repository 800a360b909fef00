"""Arguments that were stored as JSON get their Python types back: JSON has no tuple, set or complex number.

A task's assertions show which types its function is called with. ``assert f((1, 2), [(3, 4)]) == 5`` says that the
first argument is a tuple and the second a list of tuples, so that ``[[7], [[8, 9]]]`` means ``f((7,), [(8, 9)])``.
"""

import ast
from typing import Any

_CONTAINERS = (list, tuple, set, frozenset)
_NUMBERS = (int, float, complex)


def example_arguments(assertions: str, fn_name: str) -> list[list[Any]]:
    """Return the arguments of every call of the function in the assertions whose arguments are literals."""
    examples = []
    for node in ast.walk(ast.parse(assertions.strip())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == fn_name:
            try:
                examples.append([ast.literal_eval(argument) for argument in node.args])
            except ValueError:  # an expression: another call shows the type
                continue
    return examples


def restore_types(arguments: list[Any], examples: list[list[Any]]) -> list[Any]:
    """Return the arguments of one call with the types that the examples have in their place."""
    return [
        _restore(argument, [example[index] for example in examples if index < len(example)], list)
        for index, argument in enumerate(arguments)
    ]


def _restore(value: Any, examples: list[Any], outer: type) -> Any:
    """Restore one value.

    Args:
        value: From JSON.
        examples: Values that stand in its place in the assertions.
        outer: The container around it, which lists that are nested more deeply than any example become too.
    """
    if isinstance(value, str) and examples and all(isinstance(example, _NUMBERS) for example in examples):
        return _complex_or_text(value)
    if isinstance(value, list):
        containers = [example for example in examples if isinstance(example, _CONTAINERS)]
        kinds = {type(container) for container in containers} or {outer}
        kind = kinds.pop() if len(kinds) == 1 else list
        inner = [item for container in containers for item in container]
        return kind(_restore(item, inner, kind) for item in value)
    if isinstance(value, dict):
        inner = [item for example in examples if isinstance(example, dict) for item in example.values()]
        return {key: _restore(item, inner, list) for key, item in value.items()}
    return value


def _complex_or_text(text: str) -> complex | str:
    try:
        return complex(text)
    except ValueError:
        return text
