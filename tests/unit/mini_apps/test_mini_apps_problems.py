import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from recipe.mini_apps.family import LEVELS
from recipe.mini_apps.generator import FAMILIES, MiniProblem, generate
from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem


@pytest.fixture(scope="module")
def problems() -> list[MiniProblem]:
    return generate()


def test_problems_are_many_and_distinct(problems: list[MiniProblem]) -> None:
    assert (len(FAMILIES), len(problems)) == (50, 400)
    assert len({problem.question for problem in problems}) == len({problem.problem_id for problem in problems}) == 400
    for level in LEVELS:
        assert {family.kind for family in FAMILIES if family.level == level} == {"call", "stdin"}


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
    with pytest.raises(ValueError, match="unknown level"):
        generate("simple")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        generate(problems_per_family=0)
    with pytest.raises(ValueError, match="at most 10"):
        generate("easy", problems_per_family=11)
