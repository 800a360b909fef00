"""What the tests of patches have in common."""

import ast
import hashlib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import verl

SITE_PACKAGES = Path(verl.__file__).parents[1]


@pytest.fixture(scope="session")
def source_hash() -> Callable[[str, str], str]:
    """Return a function: a short hash of a function's or class's text, from disk because the live object is patched."""

    def source_hash(module_file: str, symbol: str) -> str:
        text = (SITE_PACKAGES / module_file).read_text()
        body: Any = ast.parse(text).body
        for part in symbol.split("."):
            node = next(n for n in body if getattr(n, "name", None) == part)
            body = node.body
        segment = ast.get_source_segment(text, node)
        assert segment is not None
        return hashlib.sha256(textwrap.dedent(segment).encode()).hexdigest()[:12]

    return source_hash
