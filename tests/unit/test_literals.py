"""A literal stands as it is: items are not packed into lines by ``*("a", "b")`` and ``**{"a": 1}``."""

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("recipe", "refiner_worker", "reward", "scripts", "tests", "experiments")


def packed(source: str) -> Iterator[int]:
    """Yield the lines in which a literal is spread within another one, or as the arguments of a call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List) and node.value.elts:
            yield node.lineno
        if isinstance(node, ast.Dict):
            values = [value for key, value in zip(node.keys, node.values, strict=True) if key is None]
            yield from (value.lineno for value in values if isinstance(value, ast.Dict) and value.keys)
        if isinstance(node, ast.keyword) and node.arg is None and isinstance(node.value, ast.Dict):
            names = [key.value if isinstance(key, ast.Constant) else None for key in node.value.keys]
            if all(isinstance(name, str) and name.isidentifier() for name in names):
                yield node.value.lineno


def test_what_counts_as_packed() -> None:
    assert sorted(packed("x = [*(1, 2), *y]\nz = {**{1: 2}, **y}\nf(**{'a': 1})\nf(*(1, 2))")) == [1, 2, 3, 4]
    assert not [*packed("x = [*y]\nf(**{'a.b': 1})\nf(**{'a': 1, **y})\nf(*y, **y)")]


def test_no_source_is_packed() -> None:
    files = (path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.py")))
    assert [f"{path}:{line}" for path in files for line in packed(path.read_text(encoding="utf-8"))] == []
