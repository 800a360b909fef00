"""GSM8K, MATH and puzzles to verl's parquet: rows as verl's own examples have them, whose own answers get 1."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from data_command import prepared

from recipe.data_preparation.command import options, read_gsm8k
from recipe.data_preparation.math_rows import gsm8k_row, math_row, word_problems
from reward import score

COINS = {"question": "Ada has 3 coins and finds 4. How many?", "answer": "3 + 4 = <<3+4=7>>7\n#### 7"}
MATH = {"problem": "Solve $2x = 1$.", "solution": r"So $x = \boxed{\frac{1}{2}}$.", "level": "Level 1"}


def rows_of(folder: Path) -> list[dict]:
    return [row for split in ("train", "val") for row in pq.read_table(folder / f"{split}.parquet").to_pylist()]


def test_rows_are_those_of_verls_examples() -> None:
    row = gsm8k_row(COINS, 0, "openai/gsm8k")
    assert row["prompt"][0]["content"] == (
        'Ada has 3 coins and finds 4. How many? Let\'s think step by step and output the final answer after "####".'
    )
    assert row["reward_model"] == {"style": "rule", "ground_truth": "7"}
    assert (row["data_source"], row["ability"], row["extra_info"]["index"]) == ("openai/gsm8k", "math", 0)
    assert row["extra_info"]["solution"] == COINS["answer"]
    row = math_row(MATH, 1, "math")
    assert row["prompt"][0]["content"].endswith("output the final answer within \\boxed{}.")
    assert (row["reward_model"]["ground_truth"], row["extra_info"]["difficulty"]) == (r"\frac{1}{2}", "Level 1")
    assert math_row({**MATH, "answer": "0.5"}, 1, "math")["reward_model"]["ground_truth"] == "0.5"


def test_generated_word_problems_score_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = prepared("gsm8k", "--generated", "20", "--seed", "3", "--val-fraction", "0.2", "--output", str(tmp_path))
    assert result.returncode == 0, result.stderr
    rows = rows_of(tmp_path)
    assert len(rows) == 20 and {row["data_source"] for row in rows} == {"word_problems"}
    assert [record["question"] for record in word_problems(5, 3)] == [
        row["extra_info"]["question"] for row in sorted(rows, key=lambda row: row["extra_info"]["index"])[:5]
    ]
    files = ["--problems", f"{tmp_path}/problems.jsonl", "--solutions", f"{tmp_path}/solutions.jsonl"]
    assert score.main(files) == 0
    assert {json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()} == {1.0}


@pytest.mark.parametrize(("source", "config"), [("openai/gsm8k", "main"), ("somebody/their-problems", None)])
def test_a_configuration_is_that_of_the_data_set(source: str, config: str | None, tmp_path: Path) -> None:
    arguments = options().parse_args(["gsm8k", source, "--output", str(tmp_path)])
    read_gsm8k(arguments)
    assert arguments.config == config


def test_gsm8k_is_read_from_a_clone(tmp_path: Path) -> None:
    (tmp_path / "clone" / "data").mkdir(parents=True)
    (tmp_path / "clone" / "data" / "train.jsonl").write_text(json.dumps(COINS) + "\n")
    result = prepared("gsm8k", f"{tmp_path}/clone", "--val-fraction", "0", "--output", f"{tmp_path}/out")
    assert result.returncode == 0, result.stderr
    (row,) = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("openai/gsm8k", "7")
