import pytest

from reward.extract import extract_code


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
