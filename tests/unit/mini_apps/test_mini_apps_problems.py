import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from recipe.mini_apps.family import LEVELS, Family
from recipe.mini_apps.generator import FAMILIES, MiniProblem, generate, run_reference
from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem


@pytest.fixture(scope="module")
def problems() -> list[MiniProblem]:
    return generate()


def test_numbers(problems: list[MiniProblem]) -> None:
    assert len(FAMILIES) == 50
    assert len(problems) == 400
    for level in LEVELS:
        assert {family.kind for family in FAMILIES if family.level == level} == {"call", "stdin"}
        assert sum(family.level == level for family in FAMILIES) >= 16


def test_problems_are_distinct(problems: list[MiniProblem]) -> None:
    assert len({problem.question for problem in problems}) == len(problems)
    assert len({problem.problem_id for problem in problems}) == len(problems)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:  # every parameter shows in the question, so that no two variants read the same
        assert all(f"${name}" in family.question or f"${{{name}}}" in family.question for name in family.values)


def test_tests_are_distinct_and_no_constant_answer_passes(problems: list[MiniProblem]) -> None:
    for problem in problems:
        assert len({json.dumps(value) for value in problem.inputs}) >= 5
        assert len(problem.inputs) == len(problem.outputs)
        assert len({json.dumps(value) for value in problem.outputs}) >= 2


def test_validation_families_are_unseen_in_training(problems: list[MiniProblem]) -> None:
    for level in LEVELS:
        families: dict[str, set[str]] = defaultdict(set)
        for problem in problems:
            if problem.difficulty == level:
                families[problem.split].add(problem.family)
        assert families["train"].isdisjoint(families["val"])
        assert len(families["val"]) == 3
        assert len(families["train"]) >= 13


def test_generation_is_deterministic_and_seeded(problems: list[MiniProblem]) -> None:
    assert generate() == problems
    assert generate("medium") == [problem for problem in problems if problem.difficulty == "medium"]
    assert generate(seed=1) != problems


def test_questions_name_the_answer_format(problems: list[MiniProblem]) -> None:
    for problem in problems:
        assert "$" not in problem.question.replace('"$"', "")
        assert "```python" in problem.question
        if problem.fn_name is None:
            assert "reads standard input" in problem.question
        else:
            assert problem.starter_code == problem.solution.splitlines(keepends=True)[0]
            assert problem.starter_code.strip() in problem.question
            assert f"`{problem.fn_name}(" in problem.question


def test_first_variants_by_hand() -> None:
    def output(solution: str, name: str | None, value: object) -> object:
        return run_reference(solution, name, value)

    assert output("def f(x):\n    return (x, x + 1)\n", "f", [4]) == [4, 5]
    assert output("print(int(input()) * 2)\n", None, "21\n") == "42\n"


def test_a_reference_solution_of_each_family_scores_one(problems: list[MiniProblem]) -> None:
    limits = Limits(test_s=30.0, solution_s=120.0)  # generous: a busy test machine is not the solution's fault
    one_of_each = list({problem.family: problem for problem in problems}.values())
    assert len(one_of_each) == len(FAMILIES)

    def score(problem: MiniProblem) -> Score:
        checked = Problem.from_input_output(problem.input_output, problem_id=problem.problem_id)
        return score_response(checked, f"```python\n{problem.solution}```", limits)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        scores = {
            problem.family: result for problem, result in zip(one_of_each, pool.map(score, one_of_each), strict=True)
        }
    assert {name: result for name, result in scores.items() if result.score != 1.0} == {}


def test_errors_say_what_to_set() -> None:
    with pytest.raises(ValueError, match="unknown level 'simple': choose one of easy, medium, hard"):
        generate("simple")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="problems_per_family is 0: set it to at least 1"):
        generate(problems_per_family=0)
    with pytest.raises(ValueError, match="family divisible has 10 variants: set it to at most 10"):
        generate("easy", problems_per_family=11)


def test_a_family_counts_its_variants() -> None:
    family = Family(
        name="f",
        level="easy",
        kind="stdin",
        question="$a $b",
        solution="",
        draw=lambda rng, parameters: "",
        values={"a": (1, 2), "b": "xyz"},
    )
    assert family.num_variants == 6
    assert family.variants()[:2] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
