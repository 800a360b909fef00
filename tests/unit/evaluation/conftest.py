"""Small benchmarks, written for these tests, in the record formats of the real ones."""

import gzip
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recipe.evaluation.benchmarks import Task, load_tasks
from reward.sandbox import Sandbox, SandboxConfig, shared_sandbox

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
        "canonical_solution": "    return [double(factor) * x for x in numbers]\n",
        "test": "def check(candidate):\n    assert candidate([1.0, 2.0], 1.5) == [1.5 * double(x) for x in (1, 2)]\n"
        "    assert candidate([], 3.0) == []\n",
        "entry_point": "scale",
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def swap(pair):\n    """Swap the two in the pair."""\n',
        "canonical_solution": "    return pair[1], pair[0]\n",
        "test": "def check(candidate):\n    assert candidate((1, 2)) == (2, 1)\n",
        "entry_point": "swap",
    },
]
# As in evalplus's own files.
HUMANEVAL_PLUS = [
    {**HUMANEVAL[0], "base_input": [[[1.0, 2.0], 1.5]], "plus_input": [[[], 3.0], [[0.1], 0.2]], "atol": 0},
    {
        "task_id": "HumanEval/32",
        "prompt": 'def find_zero(xs):\n    """Find a zero of xs[0] + xs[1] * x + xs[2] * x ** 2 + ..."""\n',
        "canonical_solution": "    return -xs[0] / xs[1] if len(xs) == 2 else 1.0\n",
        "entry_point": "find_zero",
        "base_input": [[[4, 2]]],
        "plus_input": [[[2, -3, 1]]],
        "atol": 0.0001,
    },
]
# As in the data set on the hub.
HUMANEVAL_PLUS_HUB = [
    {
        **HUMANEVAL[0],
        "test": """import numpy as np
def is_floats(x): return isinstance(x, float)
def assertion(out, exp, atol):
    exact_match = out == exp
    assert exact_match
def check(candidate):
    inputs = [[[1.0, 2.0], 1.5], [[], 3.0], [[inf], 0.2]]
    results = [[3.0, 6.0], [], [inf]]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
""",
    },
    {
        **HUMANEVAL_PLUS[1],
        "test": """def _poly(xs, x): return 0
def check(candidate):
    inputs = [[[4, 2]], [[2, -3, 1]]]
    results = [-2.0, 1.0]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assert _poly(*candidate(*inp), inp) <= 0.0001
""",
    },
]
for row in HUMANEVAL_PLUS_HUB:
    row.pop("base_input", None)

MBPP = [
    {
        "task_id": 11,
        "text": "Write a function to add up a tuple.",
        "code": "def total(values):\r\n  return sum(values)",
        "test_list": ["assert total((1, 2)) == 3", "assert total(()) == 0", "assert total((5,)) == size"],
        "test_setup_code": "size = 5",
        "challenge_test_list": [],
    },
    {"task_id": 600, "text": "not a test task", "code": "", "test_list": ["assert f(1)"], "test_setup_code": ""},
]
MBPP_PLUS = [
    {
        "task_id": "Mbpp/11",
        "prompt": '"""\nWrite a function to swap every pair.\nassert swap_all(((1, 2),)) == [(2, 1)]\n"""\n',
        "canonical_solution": "\ndef swap_all(pairs):\n    return [pair[::-1] for pair in pairs]\n",
        "assertion": "\nassert swap_all(((1, 2),)) == [(2, 1)]\n",
        "entry_point": "swap_all",
        "base_input": [[[[1, 2]]]],
        "plus_input": [[[]], [[[3, 4], [5, 6]]]],
        "atol": 0,
    },
    {
        "task_id": "Mbpp/2",
        "prompt": '"""\nWrite a function to find what two tuples share.\nassert set(share((1,), (1, 2))) == {1}\n"""\n',
        "canonical_solution": "\ndef share(a, b):\n    return tuple(set(a) & set(b))\n",
        "assertion": "\nassert share((1,), (1, 2)) == (1,)\n",
        "entry_point": "share",
        "base_input": [[[1], [1, 2]]],
        "plus_input": [[[1, 9, 5], [5, 3, 1]]],
        "atol": 0,
    },
    {
        "task_id": "Mbpp/737",
        "prompt": '"""\nWrite a function to find an x.\nassert has_x("ax")\n"""\n',
        "canonical_solution": "\nimport re\ndef has_x(text):\n    return re.search('x', text)\n",
        "assertion": '\nassert has_x("ax")\n',
        "entry_point": "has_x",
        "base_input": [["ax"]],
        "plus_input": [[""]],
        "atol": 0,
    },
]
MBPP_PLUS_HUB = [
    {
        "task_id": 11,
        "code": "def _sum(a, b):\n    return a + b",
        "prompt": "Write a function to add.",
        "test_imports": [],
        "test_list": ["assert _sum(1, 2) == 3", "assert _sum(2, 2) == 4"],
        "test": "import numpy as np\nfrom math import inf\ndef assertion(out, exp, atol):\n    assert out == exp\n"
        "inputs = [[1, 2], [(1,), (2,)], [inf, -1]]\ndef ref_func(a, b):\n    return a + b\n"
        "for i, inp in enumerate(inputs):\n    assertion(_sum(*inp), ref_func(*inp), 0.5)\n",
    }
]


FILES = {
    "humaneval": ("humaneval", HUMANEVAL, "HumanEval.jsonl.gz"),
    "humaneval+": ("humaneval+", HUMANEVAL_PLUS, "HumanEvalPlus.jsonl.gz"),
    "humaneval+ hub": ("humaneval+", HUMANEVAL_PLUS_HUB, "test.jsonl"),
    "mbpp": ("mbpp", MBPP, "mbpp.jsonl"),
    "mbpp+": ("mbpp+", MBPP_PLUS, "MbppPlus.jsonl.gz"),
    "mbpp+ hub": ("mbpp+", MBPP_PLUS_HUB, "test.jsonl"),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[list[dict[str, Any]], str], str]:
    """Return a function that writes JSON lines to a file, gzipped if its name says so, and returns its path."""

    def write_rows(rows: list[dict[str, Any]], name: str) -> str:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(tmp_path / name)

    return write_rows


@pytest.fixture
def load(write: Callable[..., str]) -> Callable[[str], list[Task]]:
    """Return a function that reads the tasks of one of FILES."""

    def load_file(name: str) -> list[Task]:
        benchmark, records, file = FILES[name]
        return load_tasks(benchmark, write(records, file))

    return load_file


@pytest.fixture
def humaneval_file(write: Callable[..., str]) -> str:
    """Return a file of the small HumanEval."""
    _, records, file = FILES["humaneval"]
    return write(records, file)


@pytest.fixture
def plus_file(write: Callable[..., str]) -> str:
    """Return a file of the small HumanEval+."""
    _, records, file = FILES["humaneval+"]
    return write(records, file)


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """Return a sandbox that runs two programs at a time."""
    return shared_sandbox(SandboxConfig(num_slots=2))


@pytest.fixture(scope="session")
def evaluate() -> ModuleType:
    """Return the command's module."""
    return importlib.import_module("recipe.evaluation.__main__")
