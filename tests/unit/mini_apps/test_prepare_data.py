import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import datasets
import pytest

from reward.score import load_problems, load_solutions
from reward.verl_reward import validate_rows


@pytest.fixture(scope="module")
def prepare_data() -> ModuleType:
    return importlib.import_module("recipe.data_preparation.__main__")


@pytest.fixture(scope="module")
def easy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("data") / "new" / "folder"
    command = [sys.executable, "-m", "recipe.data_preparation", "mini-apps", "--output", str(output), "--level", "easy"]
    result = subprocess.run(
        [*command, "--problems-per-family", "2"], capture_output=True, text=True, cwd=output.parents[1]
    )
    assert result.returncode == 0, result.stderr
    assert "train easy     30 problems of 15 families" in result.stdout
    assert "val   easy      6 problems of 3 families" in result.stdout
    return output


def test_parquet_has_verl_schema(easy_data: Path) -> None:
    rows = {
        split: datasets.Dataset.from_parquet(str(easy_data / f"{split}.parquet"), cache_dir=str(easy_data / "cache"))
        for split in ("train", "val")
    }
    assert (rows["train"].num_rows, rows["val"].num_rows) == (30, 6)
    for split, dataset in rows.items():
        assert validate_rows(dataset) == dataset.num_rows
        for index, row in enumerate(dataset):
            assert row["data_source"] == "mini_apps"
            assert row["ability"] == "code"
            assert [message["role"] for message in row["prompt"]] == ["user"]
            assert row["reward_model"]["style"] == "rule"
            assert row["extra_info"].keys() == {"problem_id", "family", "difficulty", "split", "solution", "index"}
            assert (row["extra_info"]["split"], row["extra_info"]["index"]) == (split, index)


def test_json_lines_feed_the_score_command(easy_data: Path) -> None:
    problems = load_problems(easy_data / "problems.jsonl")
    assert len(problems) == len(load_solutions(easy_data / "solutions.jsonl", problems)) == 36


def test_wrong_options(prepare_data: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare_data.main(["mini-apps", "--output", str(tmp_path), "--problems-per-family", "99"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "set it to at most 10" in captured.err
    assert list(tmp_path.iterdir()) == []
