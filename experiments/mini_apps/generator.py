"""The generator of problems, which fills templates, draws test inputs, and computes expected outputs."""

import contextlib
import io
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

from experiments.mini_apps import easy, medium
from experiments.mini_apps.family import Family, Kind, Level, Parameters, fill

FAMILIES: tuple[Family, ...] = (*easy.FAMILIES, *medium.FAMILIES)
PROBLEMS_PER_FAMILY = 8
NUM_TESTS = 5

ANSWER_FORMAT: dict[Kind, str] = {
    "call": "Answer with the complete function in a ```python code block, starting from:\n```python\n$starter```",
    "stdin": "Answer with one Python program in a ```python code block. It reads standard input and prints the answer.",
}


def generate(
    level: Level | None = None, *, seed: int = 0, problems_per_family: int = PROBLEMS_PER_FAMILY
) -> list[dict[str, Any]]:
    """Return the problems of one level or all levels, in the order of families; ValueError if one has too few.

    Each has APPS's columns, its family and its split. The same seed gives the same problems, whatever else is drawn.
    """
    families = [family for family in FAMILIES if level in (None, family.level)]
    fewest = min(len(family.variants()) for family in families)
    if not 1 <= problems_per_family <= fewest:
        raise ValueError(f"problems_per_family is {problems_per_family}: set it to 1 to {fewest}")
    return [problem for family in families for problem in problems_of(family, seed, problems_per_family)]


def problems_of(family: Family, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield ``count`` problems of a family."""
    # A generator per family (seeded by text: stable across processes), so that families do not disturb each other.
    rng = random.Random(f"{seed}:{family.name}")
    for index, parameters in enumerate(rng.sample(family.variants(), count)):
        solution, starter, of_name = fill(family.solution, parameters), "", {}
        if family.kind == "call":
            starter = solution.splitlines()[0] + "\n"
            of_name = {"fn_name": starter.removeprefix("def ").split("(")[0]}
        inputs, outputs = _draw_tests(family, parameters, rng, solution, of_name.get("fn_name"))
        answer_format = fill(ANSWER_FORMAT[family.kind], {"starter": starter})
        yield {
            "problem_id": f"{family.name}-{index}",
            "question": f"{fill(family.question, parameters)}\n{answer_format}",
            "input_output": json.dumps({"inputs": inputs, "outputs": outputs, **of_name}),
            "starter_code": starter,
            "solutions": json.dumps([solution]),
            "difficulty": family.level,
            "family": family.name,
            "split": family.split,
        }


def _draw_tests(
    family: Family, parameters: Parameters, rng: random.Random, solution: str, fn_name: str | None
) -> tuple[list[Any], list[Any]]:
    """Return NUM_TESTS distinct inputs and their outputs, which are not all equal: no constant answer may pass."""
    while True:
        inputs: dict[str, Any] = {}
        while len(inputs) < NUM_TESTS:
            value = family.draw(rng, parameters)
            inputs.setdefault(json.dumps(value), value)
        outputs = [run_reference(solution, fn_name, value) for value in inputs.values()]
        if any(output != outputs[0] for output in outputs):
            return list(inputs.values()), outputs


def run_reference(solution: str, fn_name: str | None, test_input: Any) -> Any:
    """Return the output of our own, trusted solution for one input: the returned JSON value, or the printed text."""
    namespace: dict[str, Any] = {"__name__": "__main__" if fn_name is None else "solution"}
    code = compile(solution, "solution.py", "exec")
    if fn_name is not None:
        exec(code, namespace)
        arguments = json.loads(json.dumps(test_input))  # a copy: the solution may change its arguments
        return json.loads(json.dumps(namespace[fn_name](*arguments)))
    stdout, stdin = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(test_input)
    try:
        with contextlib.redirect_stdout(stdout):
            exec(code, namespace)
    finally:
        sys.stdin = stdin
    return stdout.getvalue()
