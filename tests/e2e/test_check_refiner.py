"""The same wrong answers refined in several ways, by the command."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas
import pyarrow.parquet as pq
import pytest

REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    share = sum(c.islower() for c in solution_str) / max(len(solution_str), 1)
    return {"score": share, "feedback": f"{share:.0%} are small."}
"""


SIZES = ["--reward", "letters:score", "--samples", "3", "--max-response-tokens", "16", "--max-new-tokens", "24"]


@pytest.fixture
def run(start_marked: Callable, tiny_llama: Path, tmp_path: Path) -> Callable:
    """Return a function that runs a command on some data, and returns what it prints."""
    (tmp_path / "letters.py").write_text(REWARD)

    def run(command: str, data: Path, *ways: str) -> str:
        options = ["--model", str(tiny_llama), "--data", str(data), "--problems", "12", *SIZES]
        job = start_marked(["-m", "recipe.commands", command, *ways, *options], cwd=tmp_path)
        assert job.wait() == 0, job.output()[-6000:]
        assert job.survivors() == []
        return job.output()

    return run


@pytest.mark.e2e
@pytest.mark.slow
def test_ways_are_compared_on_the_same_answers(run: Callable, letter_prompts: Path, tmp_path: Path) -> None:
    said = run("check", letter_prompts, "general", "general+feedback", "dialogue+sibling")
    lines = [json.loads(line) for line in (tmp_path / "check_refiner" / "all.jsonl").read_text().splitlines()]
    plain, told = ([one for one in lines if one["way"] == way] for way in ("general", "general+feedback"))
    assert len(plain) == 12 * 3 and [one["response"] for one in plain] == [one["response"] for one in told]
    assert len({one["response"] for one in plain}) > 12
    assert all(one["feedback"] == f"{one['reward']:.0%} are small." for one in lines)
    wrong = [one for one in plain if one["verdict"] != "max_reward"]
    improved = sum((one["refined_reward"] or 0.0) > one["reward"] for one in wrong) / len(wrong)
    pairs = [(one, other) for one in wrong for other in plain if other["row"] == one["row"] and other is not one]
    better = sum(other["reward"] > one["reward"] for one, other in pairs) / len(pairs)
    assert f"A second answer scores higher than the first: {better:.1%}" in said
    table = said[said.index("| variant |") :].splitlines()
    assert table[2].startswith(f"| `general` | {improved:.1%} (") and len(table) >= 5


@pytest.mark.e2e
@pytest.mark.slow
def test_check_and_refine_print_the_same_numbers_of_the_same_rows(
    run: Callable, letter_prompts: Path, tmp_path: Path
) -> None:
    rows, data = pandas.read_parquet(letter_prompts), tmp_path / "answered.parquet"
    rows["responses"] = [[f"{n} Ab", f"{n} abc", "abc" if n % 2 else "ABC"] for n in range(len(rows))]
    rows.to_parquet(data)
    said = {name: run(name, data, "general", "dialogue+sibling") for name in ("check", "refine")}
    checked, refined = (one[one.index(" answers to 12 problems were refined") - 8 :] for one in said.values())
    assert checked == refined and "`dialogue+sibling` against a second answer" in checked
    files = [tmp_path / "check_refiner" / "all.jsonl", tmp_path / "refined" / "all.parquet"]
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert len(lines) == 2 * 12 * 3 and lines == pq.read_table(files[1]).to_pylist()
