"""From families to problems: fills the templates, draws test inputs, and computes expected outputs by the reference."""

import contextlib
import io
import json
import random
import sys
from dataclasses import dataclass
from typing import Any

from recipe.mini_apps import easy, hard, medium
from recipe.mini_apps.family import LEVELS, Family, Kind, Level, Parameters, Split, fill

FAMILIES: tuple[Family, ...] = (*easy.FAMILIES, *medium.FAMILIES, *hard.FAMILIES)
PROBLEMS_PER_FAMILY = 8
NUM_TESTS = 5

_DRAW_ATTEMPTS = 200

ANSWER_FORMAT: dict[Kind, str] = {
    "call": "Answer with the complete function in a ```python code block, starting from:\n```python\n$starter```",
    "stdin": "Answer with one Python program in a ```python code block. It reads standard input and prints the answer.",
}


@dataclass(slots=True, kw_only=True, frozen=True)
class MiniProblem:
    """One generated problem, in APPS's terms."""

    problem_id: str  # "<family>-<index in the family>", unique
    question: str  # all the model is told: the task and the answer format
    inputs: list[Any]  # [num_tests] distinct; call: list of arguments; stdin: text
    outputs: list[Any]  # [num_tests] what the reference solution returned or printed
    fn_name: str | None  # call: the function's name; stdin: None
    starter_code: str  # call: the def line; stdin: ""
    solution: str  # reference solution
    difficulty: Level
    family: str
    split: Split

    @property
    def input_output(self) -> dict[str, Any]:
        """The tests as in APPS's `input_output`."""
        tests: dict[str, Any] = {"inputs": self.inputs, "outputs": self.outputs}
        return tests if self.fn_name is None else {**tests, "fn_name": self.fn_name}

    def to_row(self) -> dict[str, Any]:
        """A row with APPS's columns, and the family and split."""
        return {
            "problem_id": self.problem_id,
            "question": self.question,
            "input_output": json.dumps(self.input_output),
            "starter_code": self.starter_code,
            "solutions": json.dumps([self.solution]),
            "difficulty": self.difficulty,
            "family": self.family,
            "split": self.split,
        }

    def to_verl_row(self, index: int) -> dict[str, Any]:
        """A row in verl's schema; `ground_truth` is what reward.verl_reward.compute_score reads."""
        return {
            "data_source": "mini_apps",
            "prompt": [{"role": "user", "content": self.question}],
            "ability": "code",
            "reward_model": {
                "style": "rule",
                "ground_truth": json.dumps({**self.input_output, "problem_id": self.problem_id}),
            },
            "extra_info": {
                "problem_id": self.problem_id,
                "family": self.family,
                "difficulty": self.difficulty,
                "split": self.split,
                "solution": self.solution,
                "index": index,
            },
        }


def generate(
    level: Level | None = None, *, seed: int = 0, problems_per_family: int = PROBLEMS_PER_FAMILY
) -> list[MiniProblem]:
    """Generate the problems of one level, or of all.

    Args:
        level: None: all levels.
        seed: the same seed gives the same problems, whatever else is generated beside them.
        problems_per_family: how many of each family's variants to take.

    Returns:
        Problems in the order of the families.

    Raises:
        ValueError: unknown level, or more problems wanted than a family has variants.
    """
    if level is not None and level not in LEVELS:
        raise ValueError(f"unknown level {level!r}: choose one of {', '.join(LEVELS)}, or None for all")
    if problems_per_family < 1:
        raise ValueError(f"problems_per_family is {problems_per_family}: set it to at least 1")
    families = [family for family in FAMILIES if level in (None, family.level)]
    fewest = min(len(family.variants()) for family in families)
    if problems_per_family > fewest:
        raise ValueError(f"problems_per_family is {problems_per_family}: set it to at most {fewest}")
    return [problem for family in families for problem in generate_family(family, seed, problems_per_family)]


def generate_family(family: Family, seed: int, count: int) -> list[MiniProblem]:
    """Generate `count` different problems of one family; ValueError if it has not so many variants."""
    # A generator per family (seeded by text: stable across processes), so that families do not disturb each other.
    rng = random.Random(f"{seed}:{family.name}")
    problems = []
    for index, parameters in enumerate(rng.sample(family.variants(), count)):
        solution = fill(family.solution, parameters)
        fn_name = starter_code = None
        if family.kind == "call":
            starter_code = solution.splitlines()[0] + "\n"
            fn_name = starter_code.removeprefix("def ").split("(")[0]
        inputs, outputs = _draw_tests(family, parameters, rng, solution, fn_name)
        task = fill(family.question, parameters)
        problems.append(
            MiniProblem(
                problem_id=f"{family.name}-{index}",
                question=f"{task}\n{fill(ANSWER_FORMAT[family.kind], {'starter': starter_code or ''})}",
                inputs=inputs,
                outputs=outputs,
                fn_name=fn_name,
                starter_code=starter_code or "",
                solution=solution,
                difficulty=family.level,
                family=family.name,
                split=family.split,
            )
        )
    return problems


def _draw_tests(
    family: Family, parameters: Parameters, rng: random.Random, solution: str, fn_name: str | None
) -> tuple[list[Any], list[Any]]:
    """NUM_TESTS distinct inputs and their outputs, which are not all the same: no constant answer may pass."""
    for _ in range(_DRAW_ATTEMPTS):
        inputs: dict[str, Any] = {}
        for _ in range(_DRAW_ATTEMPTS):
            value = family.draw(rng, parameters)
            inputs.setdefault(json.dumps(value), value)
            if len(inputs) == NUM_TESTS:
                break
        else:
            raise ValueError(
                f"family {family.name}: fewer than {NUM_TESTS} distinct inputs: widen what draw can return"
            )
        outputs = [run_reference(solution, fn_name, value) for value in inputs.values()]
        if any(output != outputs[0] for output in outputs):
            return list(inputs.values()), outputs
    raise ValueError(f"family {family.name}: one output for all inputs with {parameters}: change its values or draw")


def run_reference(solution: str, fn_name: str | None, test_input: Any) -> Any:
    """Output of our own, trusted solution for one input: the returned JSON value, or the printed text."""
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
