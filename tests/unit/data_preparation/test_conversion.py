"""Data sets to verl's parquet: what is kept is right, and what is dropped is told with its reason."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_command import prepared

from recipe.data_preparation.rows import Screen, apps_row, dialogue_row
from recipe.data_preparation.writer import convert
from reward import score
from reward.verl_reward import parse_ground_truth

STDIN = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
CALL = {"inputs": [[[1, 2]]], "outputs": [3], "fn_name": "total"}
BENCHMARK = "Return the sum of all the even numbers of a list that is given to you, but only those"


def write_problem(root: Path, name: str, question: str, tests: Any, starter: str = "", solutions: Any = ()) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "question.txt").write_text(question)
    (folder / "input_output.json").write_text(tests if isinstance(tests, str) else json.dumps(tests))
    (folder / "solutions.json").write_text(json.dumps(list(solutions)))
    (folder / "metadata.json").write_text(json.dumps({"difficulty": "interview", "url": "u"}))
    if starter:
        (folder / "starter_code.py").write_text(starter)


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    root = tmp_path / "apps" / "train"
    solutions = ["print(sum(map(int, input().split())))", "return 3", "print 3"]
    add_list = ["", "def total(values):\n    return sum(values)"]
    write_problem(root, "0000", "Add two numbers.", STDIN, solutions=solutions)
    write_problem(root, "0001", "Add a list.", CALL, "def total(values):", add_list)
    write_problem(root, "0002", "No tests at all.", "")
    write_problem(root, "0003", "Empty tests.", {"inputs": [], "outputs": []})
    write_problem(root, "0004", "Broken.", '{"inputs": [')
    write_problem(root, "0005", "Uneven.", {"inputs": ["1", "2"], "outputs": ["1"]})
    write_problem(root, "0006", "  \n", STDIN)
    write_problem(root, "0007", "add  two NUMBERS!", STDIN)
    write_problem(root, "0008", f"{BENCHMARK} which are positive.", STDIN)
    write_problem(root, "0010", "A bad name.", {**CALL, "fn_name": "not a name"})
    return root.parent


def test_apps_folders_with_every_fault(apps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = tmp_path / "benchmark.jsonl"
    benchmark.write_text(json.dumps({"prompt": f"def f(values):\n    '''{BENCHMARK}'''"}) + "\n")
    output = tmp_path / "out"
    options = ("--benchmarks", str(benchmark))
    result = prepared("apps", str(apps), "--output", str(output), "--val-fraction", "0", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("10 records: 2 train, 0 val; dropped: 1 broken JSON, 1 duplicate, ")
    card = (output / "card.md").read_text()
    reasons = {
        "no tests": ["0002", "0003"],
        "broken JSON": ["0004"],
        "unequal lengths": ["0005"],
        "no question": ["0006"],
        "duplicate": ["0007"],
        "overlaps with a benchmark": ["0008"],
        "malformed tests": ["0010"],
    }
    for reason, names in reasons.items():
        section = card.split(f"## Dropped, {reason}: {len(names)}\n")[1].split("\n##")[0]
        assert [line[2:6] for line in section.splitlines() if line.startswith("- ")] == names, reason
    assert "- 0005: 2 inputs, 1 outputs" in card
    rows = pq.read_table(output / "train.parquet").to_pylist()
    assert [row["extra_info"]["problem_id"] for row in rows] == ["0000", "0001"]
    assert "reads standard input" in rows[0]["prompt"][0]["content"]
    assert "def total(values):" in rows[1]["prompt"][0]["content"]
    assert parse_ground_truth(rows[1]["reward_model"]["ground_truth"]).fn_name == "total"
    assert rows[0]["extra_info"]["solution"] == "print(sum(map(int, input().split())))"
    assert rows[1]["extra_info"]["solution"] == "def total(values):\n    return sum(values)"
    assert score.main([f"--{name}={output}/{name}.jsonl" for name in ("problems", "solutions")]) == 0
    assert [json.loads(line)["score"] for line in capsys.readouterr().out.splitlines()] == [1.0, 1.0]


def test_tests_that_a_question_shows_are_its_examples() -> None:
    question = "Add.\n-----Example-----\nInput\n1 2 \n\nOutput\n3\n\nIn words: 4 and 4."
    tests = {"inputs": ["4 4\n", "1 2\n", "1\n"], "outputs": ["4\n", "3", "2\n"]}
    row = apps_row({"question": question, "input_output": tests}, 0, "apps")
    assert parse_ground_truth(row["reward_model"]["ground_truth"]).examples == (1,)
    row = apps_row({"question": f"{question}\n1\n3", "input_output": CALL}, 0, "apps")
    assert parse_ground_truth(row["reward_model"]["ground_truth"]).examples == ()


def test_the_split_is_the_same_in_every_run_and_no_row_is_lost(tmp_path: Path) -> None:
    def split(folder: str) -> list[set[str]]:
        records = iter([{"prompt": f"question number {n}"} for n in range(600)])
        output = tmp_path / folder
        options = {"name": "d", "screen": Screen([]), "output": output, "val_fraction": 0.2, "extra": {}}
        card = convert(records, dialogue_row, **options)  # type: ignore[arg-type]
        found = [
            {row["prompt"][0]["content"] for row in pq.read_table(output / f"{name}.parquet").to_pylist()}
            for name in ("train", "val")
        ]
        assert [len(rows) for rows in found] == [card.kept["train"], card.kept["val"]]
        return found

    first, second = split("one"), split("two")
    assert first == second and len(first[0] | first[1]) == 600
    assert 80 < len(first[1]) < 160


def test_what_an_earlier_conversion_left(tmp_path: Path) -> None:
    """A validation set of an earlier run would be trained on by this one; a run that fails leaves all as it was."""
    source = tmp_path / "in" / "problems.jsonl"
    source.parent.mkdir()
    rows = [{"question": f"Add {n} to a number.", "input_output": STDIN} for n in range(8)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out"
    prepared("apps", str(source), "--output", str(output), "--val-fraction", "0.5")
    assert (output / "val.parquet").exists()
    prepared("apps", str(source), "--output", str(output), "--val-fraction", "0")
    assert not (output / "val.parquet").exists() and pq.read_table(output / "train.parquet").num_rows == 8
    before = {path: path.read_bytes() for path in output.iterdir()}
    (tmp_path / "bad.jsonl").write_text('{"question": "Add."}\n')
    assert prepared("apps", str(tmp_path / "bad.jsonl"), "--output", str(output)).returncode == 2
    assert {path: path.read_bytes() for path in output.iterdir()} == before
    refused = prepared("apps", str(source), "--output", str(source.parent))
    assert "would be overwritten" in refused.stderr and len(source.read_text().splitlines()) == 8


@pytest.mark.parametrize(
    "arguments", [("{0}/train.parquet",), ("{0}",), ("{0}/rows.jsonl", "--benchmarks", "{0}/val.parquet")]
)
def test_what_is_read_is_not_overwritten(arguments: tuple[str, ...], tmp_path: Path) -> None:
    rows = [{"question": f"Question {n}?", "answer": n} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split in ("train", "val"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    refused = prepared("rows", *(one.format(tmp_path) for one in arguments), "--output", str(tmp_path))
    assert refused.returncode == 2 and "would be overwritten: give another --output" in refused.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_interrupted_conversion_leaves_no_half_file(tmp_path: Path) -> None:
    def records() -> Iterator[dict[str, Any]]:
        yield from ({"prompt": f"question {n}"} for n in range(300))
        raise OSError("the line is dead")

    options = {"name": "d", "screen": Screen([]), "output": tmp_path, "val_fraction": 0.1, "extra": {}}
    with pytest.raises(OSError):
        convert(records(), dialogue_row, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("apps", "/nowhere"), "/nowhere: no such file or folder"),
        (("rows", "data/nowhere.csv.gz"), "data/nowhere.csv.gz: no such file or folder"),
        (("apps", "."), "no data file (.jsonl, "),
        (("dialogue", "README.md"), "README.md: give a file that ends in one of"),
        (("gsm8k",), "give a SOURCE or --generated N"),
        (("gsm8k", "--generated", "0"), "--generated 0: give 1 to 10000"),
        (("reasoning-gym", "--tasks", "a", "--set", "a.b"), "--set a.b: give TASK.KEY=JSON"),
        (("reasoning-gym", "--tasks", "a", "--number", "0"), "--number 0: give 1 to 100000"),
        (("reasoning-gym", "--tasks", "a", "--number", "100001"), "--number 100001: give 1 to 100000"),
        (("reasoning-gym", "--tasks", "a", "--seed", "-1"), "--seed -1: give 0 to 40000"),
        (("reasoning-gym", "--tasks", "a", "--seed", "40001"), "--seed 40001: give 0 to 40000"),
        (("apps", ".", "--val-fraction", "1"), "--val-fraction 1.0: give 0 or more and less than 1"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = prepared(*arguments, "--output", str(tmp_path / "out"))
    assert result.returncode == 2
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_test_code_that_says_nothing_of_an_answer_is_dropped_by_name(tmp_path: Path) -> None:
    file = tmp_path / "tests.jsonl"
    tests = {"good": ["assert f(3) == 4"], "vacuous": ["f(3)"]}
    lines = [
        {"problem_id": name, "question": f"Do {name}.", "input_output": json.dumps({"test_code": code, "fn_name": "f"})}
        for name, code in tests.items()
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = prepared("apps", str(file), "--output", str(tmp_path / "out"), "--val-fraction", "0")
    assert result.stdout.startswith("2 records: 1 train, 0 val; dropped: 1 malformed tests"), result.stderr
    assert "- vacuous: " in (tmp_path / "out" / "card.md").read_text()
    (row,) = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert parse_ground_truth(row["reward_model"]["ground_truth"]).inputs == tests["good"]
    assert "Write a Python function" in row["prompt"][0]["content"]
