"""Tests wait for what they need, with a bound that only a failure reaches: none depends on how busy the machine is."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from busy_machine import RAYS_PATIENCE

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))
SHORTEST_S = 60.0
LOOPS = (ast.While, ast.AsyncFor, ast.For)


def calls(tree: ast.AST, *, looks_again: bool = False, ends: bool = False) -> Iterator[tuple[ast.Call, bool, bool]]:
    """Yield each call, whether it stands in a loop, and whether its end by a time-out is what a test asks for."""
    for node in ast.iter_child_nodes(tree):
        asked = isinstance(node, ast.With) and "TimeoutE" in ast.unparse(node.items[0])
        if isinstance(node, ast.Call):
            yield node, looks_again, ends or asked
        yield from calls(node, looks_again=looks_again or isinstance(node, LOOPS), ends=ends or asked)


def number(node: ast.expr | None) -> float:
    """Return a constant, or the larger constant of a sum; 0 for anything else."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return max(number(node.left), number(node.right))
    return float(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0.0


def hurried(text: str) -> list[str]:
    """Return the calls that hope for a fast machine: a fixed sleep outside of a loop, or a short bound of a wait."""
    found = []
    for call, looks_again, ends in calls(ast.parse(text)):
        name = ast.unparse(call.func).rpartition(".")[2]
        seconds = number(call.args[0] if call.args else None)
        bounds = [number(word.value) for word in call.keywords if word.arg == "timeout"]
        if name in ("wait", "join", "result", "communicate"):
            bounds.append(seconds)
        if name == "wait_for" and len(call.args) > 1:
            bounds.append(number(call.args[1]))
        if name == "sleep":  # a long one is of what stays until it is ended
            bounds.append(seconds)
        if not (looks_again or ends) and any(0 < bound < SHORTEST_S for bound in bounds):
            found.append(f"line {call.lineno}: {ast.unparse(call)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(TESTS)) for path in FILES])
def test_nothing_hopes_for_a_fast_machine(path: Path) -> None:
    assert hurried(path.read_text()) == [], "wait for a condition: tests/helpers/waiting.py"


LINES = [
    "time.sleep(0.5)",
    "job.wait(10)",
    "run(command, timeout=30)",
    "await asyncio.sleep(1)",
    "await asyncio.wait_for(answer(), limit_s + 20)",
]


@pytest.mark.parametrize("line", LINES)
def test_what_hopes_is_found(line: str) -> None:
    assert len(hurried(f"async def test():\n    {line}\n    assert is_there()")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "while not is_there():\n    time.sleep(0.1)",
        "with pytest.raises(subprocess.TimeoutExpired):\n    job.wait(0.5)",
        "job.wait(900)",
        "job.wait()",
        "await asyncio.sleep(0)",
    ],
)
def test_what_waits_for_a_condition_is_not(text: str) -> None:
    assert hurried("async def test():\n" + "".join(f"    {line}\n" for line in text.splitlines())) == []


@pytest.mark.parametrize(("file", "words"), RAYS_PATIENCE.items())
def test_what_ray_says_of_a_node_that_starts_slowly(file: str, words: str) -> None:
    ray = find_spec("ray")
    assert ray is not None and ray.origin is not None
    assert words in (Path(ray.origin).parents[1] / file).read_text()
