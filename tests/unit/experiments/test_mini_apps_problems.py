import json
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from experiments.mini_apps.__main__ import main
from experiments.mini_apps.family import LEVELS
from experiments.mini_apps.generator import FAMILIES, generate
from reward.apps import Score, score_response
from reward.limits import Limits
from reward.problem import Problem
from reward.verl_reward import validate_row


@pytest.fixture(scope="module")
def problems() -> list[dict[str, Any]]:
    return generate()


def test_problems_are_distinct_and_no_constant_answer_passes(problems: list[dict[str, Any]]) -> None:
    assert len(problems) == 8 * len(FAMILIES)
    assert len({one["question"] for one in problems}) == len({one["problem_id"] for one in problems}) == len(problems)
    for problem in problems:
        tests = json.loads(problem["input_output"])
        assert len({json.dumps(value) for value in tests["inputs"]}) == len(tests["outputs"]) == 5
        assert len({json.dumps(value) for value in tests["outputs"]}) >= 2


@pytest.mark.parametrize("level", LEVELS)
def test_validation_families_are_unseen_in_training(problems: list[dict[str, Any]], level: str) -> None:
    assert {family.kind for family in FAMILIES if family.level == level} == {"call", "stdin"}
    families: dict[str, set[str]] = defaultdict(set)
    for problem in problems:
        if problem["difficulty"] == level:
            families[problem["split"]].add(problem["family"])
    assert families["train"].isdisjoint(families["val"])
    assert len(families["val"]) == 3 < len(families["train"])


def test_generation_is_deterministic_and_seeded(problems: list[dict[str, Any]]) -> None:
    assert generate() == problems
    assert generate("medium") == [problem for problem in problems if problem["difficulty"] == "medium"]
    assert generate(seed=1) != problems


def test_a_reference_solution_of_each_family_scores_one(problems: list[dict[str, Any]]) -> None:
    limits = Limits(test_s=30.0, solution_s=120.0)  # generous: a busy test machine is not the solution's fault
    one_of_each = list({problem["family"]: problem for problem in problems}.values())

    def score(problem: dict[str, Any]) -> Score:
        checked = Problem.from_input_output(json.loads(problem["input_output"]), problem_id=problem["problem_id"])
        return score_response(checked, f"```python\n{json.loads(problem['solutions'])[0]}```", limits)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        scores = dict(zip((one["family"] for one in one_of_each), pool.map(score, one_of_each), strict=True))
    assert {name: result for name, result in scores.items() if result.score != 1.0} == {}
    assert scores.keys() == {family.name for family in FAMILIES}


def test_the_quickstarts_rows_are_what_the_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["mini_apps", "--level", "easy", "--output", str(tmp_path / "new")])
    main()
    shipped = Path(os.environ["QUICKSTART_DATA"])
    assert sum(file.stat().st_size for file in shipped.iterdir()) < 30_000
    for split, number in {"train": 120, "val": 24}.items():
        rows = pq.read_table(shipped / f"{split}.parquet").to_pylist()
        assert rows == pq.read_table(tmp_path / "new" / f"{split}.parquet").to_pylist() and len(rows) == number
        for row in rows:
            validate_row(row)
            assert (row["data_source"], row["ability"], row["reward_model"]["style"]) == ("mini_apps", "code", "rule")
            assert [message["role"] for message in row["prompt"]] == ["user"]
            assert row["extra_info"].keys() == {"problem_id", "family", "difficulty", "split", "solution", "index"}
            assert row["extra_info"]["split"] == split


@pytest.mark.parametrize("number", [0, 11])
def test_a_number_that_families_do_not_have(number: int) -> None:
    with pytest.raises(ValueError, match="set it to 1 to 10"):
        generate("easy", problems_per_family=number)
