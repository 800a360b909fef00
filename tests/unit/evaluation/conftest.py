"""Small benchmarks, written for these tests, in the record formats of the real ones."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCALE_PROMPT = '''from typing import List

def double(x: float) -> float:
    return 2 * x


def scale(numbers: List[float], factor: float) -> List[float]:
    """Multiply every number by twice the factor."""
'''
HUMANEVAL = [
    {
        "task_id": "HumanEval/0",
        "prompt": SCALE_PROMPT,
        "test": "def check(candidate):\n    assert candidate([1.0, 2.0], 1.5) == [1.5 * double(x) for x in (1, 2)]\n"
        "    assert candidate([], 3.0) == []\n",
        "entry_point": "scale",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def swap(pair):\n    """Swap the two in the pair."""\n',
        "test": "def check(candidate):\n    assert candidate((1, 2)) == (2, 1)\n",
        "entry_point": "swap",
    },
]
MBPP = [
    {
        "task_id": 11,
        "text": "Write a function to add up a tuple.",
        "test_list": ["assert total((1, 2)) == 3", "assert total(()) == 0", "assert total((5,)) == size"],
        "test_setup_code": "size = 5",
    },
    {"task_id": 600, "text": "not a test task", "test_list": ["assert f(1)"], "test_setup_code": ""},
]
RECORDS = {"humaneval": HUMANEVAL, "mbpp": MBPP}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[list[dict[str, Any]], str], str]:
    """Return a function that writes JSON lines to a file, gzipped if its name says so, and returns its path."""

    def write_rows(rows: list[dict[str, Any]], name: str) -> str:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(tmp_path / name)

    return write_rows


@pytest.fixture
def records(write: Callable[..., str]) -> Callable[[str], str]:
    """Return a function that writes a small benchmark's records to a file."""
    return lambda name: write(RECORDS[name], f"{name}.jsonl.gz")
