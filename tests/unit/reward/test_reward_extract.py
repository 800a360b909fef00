import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward.extract import _fenced_blocks, extract_code


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("Sure:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```py\nx = 1\n```", "x = 1\n"),
        ("```python\nfirst = 1\n```\n```python\nsecond = 2\n```", "second = 2\n"),
        ("```python\nprint(1)\n```\nOutput:\n```\n1\n```", "print(1)\n"),  # a shown output is no program
        ("```python\nprint(1)\n", "print(1)\n"),  # cut by the length limit
        ("Text ```Python3\r\nprint(1)```", "print(1)"),
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("print(sum(map(int, input().split())))", "print(sum(map(int, input().split())))"),
        ("import sys", "import sys"),
    ],
)
def test_code_is_found(response: str, code: str) -> None:
    assert extract_code(response) == code


@pytest.mark.parametrize(
    "response",
    [
        "",
        "hello",
        "Answer: x",
        "42",
        "I do not know.",
        "def f(:",
        "a\0b = 1",
        "```python\n\n```",
        "```bash\nls\n```",
        "(" * 10_000,
    ],
)
def test_no_code(response: str) -> None:
    assert extract_code(response) is None


# What a block is, in one line; its time grows with the cube of a line's length.
BLOCK = re.compile(r"```[ \t]*([\w+.-]*)[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)


@given(st.lists(st.sampled_from(["```", "`", "python", "c++", " ", "\t", "\n", "\r", "x = 1", "é", "-"]), max_size=20))
def test_blocks_are_those_of_the_pattern(parts: list[str]) -> None:
    text = "".join(parts)
    assert list(_fenced_blocks(text)) == BLOCK.findall(text)


@pytest.mark.parametrize(
    "part",
    ["```" + " " * 40_000, ("```" + " " * 4000 + "x") * 100, "```" * 100_000, "``` ` " * 50_000, "```\n" * 50_000],
)
def test_time_grows_with_the_length_only(part: str) -> None:
    started = time.process_time()
    extract_code(part)
    extract_code(part + "\n```python\nx = 1\n```")
    assert time.process_time() - started < 2.0
