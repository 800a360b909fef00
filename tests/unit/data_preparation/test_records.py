"""What real data sets hold: numbers for labels, parts for content, files of every kind. Kept right, or named."""

import contextlib
import csv
import gzip
import json
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_command import prepared

from recipe.data_preparation.command import _questions
from recipe.data_preparation.fields import Dropped
from recipe.data_preparation.math_rows import gsm8k_row, math_row
from recipe.data_preparation.rows import Screen, apps_row, dialogue_row, own_row, solutions_of
from recipe.data_preparation.sources import read_records
from reward import score
from reward.math import MathProblem

TESTS = {"inputs": ["1\n"], "outputs": ["1\n"]}
USER = {"role": "user", "content": "Tell me a joke."}
TEXT = {"type": "text", "text": "Tell me "}
Row = dict[str, Any]


def label(record: Row, build: Callable[..., Row] = math_row) -> str:
    return build({"problem": "How many?", "question": "How many?", **record}, 0, "m")["reward_model"]["ground_truth"]


def prompt(record: Row) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in dialogue_row(record, 0, "d")["prompt"]]


@pytest.mark.parametrize(
    ("record", "expected", "met_by"),
    [
        ({"answer": 0}, "0", "0"),
        ({"answer": 0.0}, "0.0", "0"),
        ({"answer": False}, "False", "false"),
        ({"answer": 0, "solution": r"not \boxed{5}"}, "0", "0"),
        ({"answer": float("nan"), "solution": r"so \boxed{5}"}, "5", "5"),
        ({"answer": " ", "solution": r"so \boxed{0}"}, "0", "0"),
        ({"final_answer": ["5 cm"]}, "5 cm", "5"),
        ({"answer": "['5 cm']"}, "5 cm", "5"),
        ({"answer": [0]}, "0", "0"),
        ({"answer": "1e-05"}, "0.00001", "0.00001"),
        ({"answer": 1e22}, "10000000000000000000000", "10^{22}"),
        ({"answer": "a, bird, can, do, every, 3, good, house"}, None, "a,bird,can,do,every,3,good,house"),
        ({"answer": "CO2"}, "CO2", r"\text{CO2}"),
        ({"answer": Decimal("0.00")}, "0.00", "0"),
        ({"answer": "[0, 1]"}, "[0, 1]", "[0,1]"),
        ({"answer": r"\text{Evelyn}"}, r"\text{Evelyn}", "Evelyn"),
        ({"answer": "2:30 PM"}, "2:30 PM", "2:30 PM"),
        ({"answer": "5 million"}, "5 million", r"5\text{ million}"),
        ({"answer": "ln(2)"}, "ln(2)", r"\ln 2"),
        ({"answer": "log_2(3)"}, "log_2(3)", r"\log_2 3"),
        ({"Problem": "How many?", "Answer": 3, "problem": None, "question": None}, "3", "3"),
    ],
)
def test_a_label_is_what_its_answer_meets(record: Row, expected: str | None, met_by: str) -> None:
    found = label(record)
    assert found == (record["answer"] if expected is None else expected)
    assert MathProblem.from_answer(found, problem_id=0).score(rf"\boxed{{{met_by}}}").score == 1.0


@pytest.mark.parametrize("build", [math_row, gsm8k_row])
@pytest.mark.parametrize(
    "answer",
    [
        {"value": 4},
        ["1", "2"],
        "['1', '2']",
        '{"value": 4}',
        [{"text": "4"}],
        "It is 7.",
        "(" * 30 + "1" + ")" * 30,
        "First 3, then 4, so 7.",
        "We get $x = 7$ in the end.",
        "answer: 4",
        "She has seven of the apples left.",
        "<b>4</b>",
        "1e999999999",
        date(2024, 1, 5),
        "Room 12",
        b"4",
    ],
)
def test_a_label_that_no_answer_meets_is_dropped_by_name(build: Callable[..., Row], answer: Any) -> None:
    with pytest.raises(Dropped, match="answer not gradable: "):
        label({"answer": answer}, build)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("acos(x)", "acos is no known function: give LaTeX"),
        ("<b>4</b>", "it cannot be read: give LaTeX"),
        ("Room 12", "whoever answers 12 gets 0: give the answer alone"),
        ("answer: 4", "it is a sentence, give the answer alone"),
    ],
)
def test_the_card_says_what_to_change_in_a_label(answer: str, words: str) -> None:
    with pytest.raises(Dropped, match=words):
        label({"answer": answer})


@pytest.mark.parametrize(
    ("answer", "compared_as"),
    [(r"k\pi+\frac{\pi}{4}, k \in \mathbb{Z}", "text"), (r"p\to q", "text"), (r"\frac12", "value"), ("10^-3", "value")],
)
def test_a_label_that_no_parser_reads_is_kept_and_named(answer: str, compared_as: str, tmp_path: Path) -> None:
    assert math_row({"problem": "How many?", "answer": answer}, 0, "m")["extra_info"]["compared_as"] == compared_as
    (tmp_path / "data.jsonl").write_text(json.dumps({"problem": "How many?", "answer": answer}) + "\n")
    result = prepared("math", f"{tmp_path}/data.jsonl", "--output", f"{tmp_path}/out", "--val-fraction", "0")
    assert ("1 answer is compared as text" in result.stdout) == (compared_as == "text")
    assert ("Kept, the answer is compared as text: 1" in (tmp_path / "out" / "card.md").read_text()) == (
        compared_as == "text"
    )


@pytest.mark.parametrize("answer", [None, "", [], {}, [""], [None], float("nan"), Decimal("NaN")])
def test_what_holds_nothing_is_no_answer(answer: Any) -> None:
    for build in (math_row, gsm8k_row):
        with pytest.raises(Dropped, match="no answer"):
            label({"answer": answer}, build)


def test_falsy_values_are_values() -> None:
    own = {"problem_id": 0, "level": 0, "difficulty": 0}
    math = math_row({"problem": "How many?", "answer": 2, **own}, 7, "m")
    apps = apps_row({"question": "Echo.", "input_output": {**TESTS, "test_code": None}, **own}, 7, "apps")
    for row in (math, apps):
        assert (row["extra_info"]["problem_id"], row["extra_info"]["difficulty"]) == ("0", "0")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"messages": [{"role": "user", "content": [TEXT, {"type": "text", "text": "a joke."}]}]}, ["Tell me a joke."]),
        ({"prompt": [USER]}, ["Tell me a joke."]),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, ["Tell me a joke."]),
        ({"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Ho."}]}, ["Hi."]),
        ({"messages": [], "prompt": "Hi."}, ["Hi."]),
        ({"Prompt": "Hi."}, ["Hi."]),
        ({"messages": [{"role": "User", "content": "Hi."}]}, ["Hi."]),
        ({"instruction": "Double it:", "input": "0"}, ["Double it:\n\n0"]),
        ({"context_messages": [USER]}, ["Tell me a joke."]),
    ],
)
def test_content_is_text_in_whatever_shape(record: Row, expected: list[str]) -> None:
    assert prompt(record) == [("user", text) for text in expected]


@pytest.mark.parametrize("column", ["messages", "prompt", "conversations"])
@pytest.mark.parametrize("value", [[USER], [{"from": "human", "value": USER["content"]}], USER, [{"id": 1, **USER}]])
def test_messages_may_be_json_text(column: str, value: Any) -> None:
    assert prompt({column: json.dumps(value)}) == [("user", USER["content"])]
    assert math_row({"problem": json.dumps(value), "answer": 1}, 0, "m")["extra_info"]["question"] == USER["content"]


@pytest.mark.parametrize("text", ["[1, 2]: is it JSON?", "{1, 2} is a set", '[{"a": 1}]', "[role: user]"])
def test_text_in_brackets_is_no_chat(text: str) -> None:
    assert prompt({"prompt": text}) == [("user", text)]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": str([USER])},
        {"messages": str([{"content": "a {b}", "role": "user"}])},
        {"messages": str((USER,))},
        {"messages": f"array([{USER}], dtype=object)"},
        {"messages": "[]"},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "system", "content": None}, USER]},
        {"messages": [{"role": "user", "content": [TEXT, {"type": "image_url", "image_url": "a.png"}]}]},
        {"messages": [{"role": "user", "content": {"parts": ["hi"]}}]},
        {"messages": [{"content": "hi"}]},
        {"messages": [{"role": "narrator", "content": "hi"}]},
        {"prompt": ["hi"]},
        {"prompt": 7},
        {"completion": "hi"},
        {"prompt": " "},
        {"messages": [{"role": "assistant", "content": "a"}]},
    ],
)
def test_what_is_no_text_is_dropped_by_name(record: Row) -> None:
    with pytest.raises(Dropped, match="no prompt: "):
        prompt(record)


@pytest.mark.parametrize(
    ("solutions", "expected"),
    [
        (["print(1)"], ["print(1)"]),
        ('["print(1)"]', ["print(1)"]),
        ("print(1)", ["print(1)"]),
        ("7", []),
        ([None, 7, "print(1)"], ["print(1)"]),
        (["", " \n", "print(1)"], ["print(1)"]),
        ("['print(1)', ...", []),
    ],
)
def test_solutions_are_a_list_or_its_json(solutions: Any, expected: list[str]) -> None:
    assert solutions_of({"solutions": solutions}) == expected


@pytest.mark.parametrize("tests", [7, {"inputs": 7, "outputs": 7}, {"inputs": "ab", "outputs": "ab"}, '"a"'])
def test_tests_of_another_shape_are_dropped_by_name(tests: Any) -> None:
    with pytest.raises(Dropped, match="no tests|malformed tests"):
        apps_row({"question": "Echo.", "input_output": tests}, 0, "apps")


@pytest.mark.parametrize(
    ("first", "second", "is_duplicate"),
    [
        *((first, second, False) for first in ("$3+4$", "$3-4$") for second in ("$3^4$", "$3*4$", "$(3,4)$")),
        ("$1.5$", "$15$", False),
        ("$3!$", "$3$", False),
        ("R", "r", False),
        ("a < b", "a > b", False),
        ("[0,1)", "(0,1]", False),
        ("कि", "की", False),
        ("the  sum\nof all", "The sum of all!", True),
        ("$3+4$", " $3+4$\n", True),
    ],
)
def test_duplicates_are_the_same_problem(first: str, second: str, is_duplicate: bool) -> None:
    screen = Screen([])
    screen.check(dialogue_row({"prompt": f"Compute {first}"}, 0, "d"))
    with pytest.raises(Dropped, match="duplicate") if is_duplicate else contextlib.nullcontext():
        screen.check(dialogue_row({"prompt": f"Compute {second}"}, 1, "d"))


def test_duplicates_are_found_by_the_question() -> None:
    screen = Screen([])
    screen.check(math_row({"question": "What is the capital of Peru?", "answer": "Lima"}, 0, "m"))
    screen.check(math_row({"question": "What is the capital of Chile?", "answer": "Santiago"}, 1, "m"))
    with pytest.raises(Dropped, match="duplicate"):
        screen.check(math_row({"question": "what is the capital of peru", "answer": "Lima"}, 2, "m"))


def test_different_labels_of_one_question_are_all_left_out(tmp_path: Path) -> None:
    problems = [("What is 3+3?", "6"), ("Half of one?", "1/2"), ("What is 3+3?", "7"), ("Half of one?", "0.5")]
    problems += [("What is 3+3?", "6"), ("What is 2+2?", "4")]
    (tmp_path / "a.jsonl").write_text(lines([{"problem": asked, "answer": answer} for asked, answer in problems]))
    result = prepared("math", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out", "--val-fraction", "0")
    assert result.stdout.startswith("6 records: 2 train, 0 val; dropped: 3 contradictory labels, 1 duplicate"), result
    found = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in found] == ["1/2", "4"]
    assert len((tmp_path / "out" / "problems.jsonl").read_text().splitlines()) == 2
    card = (tmp_path / "out" / "card.md").read_text()
    assert "- row 3: 7\n- row 5: 6\n- row 1: 6\n" in card


def test_a_dropped_record_is_found_by_its_number(tmp_path: Path) -> None:
    good = {"question": "Echo.", "input_output": {"inputs": ["a\n"], "outputs": ["a\n"]}}
    records = [good, {"question": "Broken.", "input_output": ""}, {"question": "Broken.", "input_output": "{'a': 1}"}]
    (tmp_path / "a.jsonl").write_text(lines(records))
    result = prepared("apps", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out", "--val-fraction", "0")
    assert result.stdout.count("data.val_files needs rows: raise --val-fraction") == 1
    card = (tmp_path / "out" / "card.md").read_text()
    assert "## Dropped, broken JSON: 1\n- row 3: input_output: Expecting property name" in card
    assert "- row 2: give a column input_output; " in card


def test_benchmarks_are_compared_by_the_question_alone(tmp_path: Path) -> None:
    """What all prompts of a source say would overlap everywhere, and hide that a short question is the same."""
    asked = "Print the sum of two integers."
    record = {"question": asked, "input_output": {"inputs": ["1 2\n"], "outputs": ["3\n"]}}
    row = apps_row(record, 0, "apps")
    with pytest.raises(Dropped, match="overlaps"):
        Screen([asked]).check(row)
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    prepared_rows = list(_questions(str(tmp_path / "rows.parquet")))
    assert prepared_rows == [asked]
    Screen(prepared_rows).check(apps_row({**record, "question": "Print the product of two integers."}, 0, "apps"))
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}]}
    with pytest.raises(Dropped, match="overlaps"):
        Screen([asked]).check(dialogue_row(chat, 0, "d"))


def test_a_short_benchmark_is_no_other_problem() -> None:
    screen = Screen(["What is 3 + 4?"])
    screen.check(dialogue_row({"prompt": "What is 3 - 4?"}, 0, "d"))
    with pytest.raises(Dropped, match="overlaps with a benchmark"):
        screen.check(dialogue_row({"prompt": "What is 3 + 4?"}, 1, "d"))


ROWS = [{"problem": "What is 1 - 1?", "answer": 0}, {"problem": "What is 1 + 1?", "answer": 2}]


def lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(
            stream, ["problem", "answer"], dialect="excel-tab" if path.suffix == ".tsv" else "excel"
        )
        writer.writeheader()
        writer.writerows(ROWS)


FILES: dict[str, Callable[[Path], Any]] = {
    "rows.jsonl": lambda path: path.write_text(lines(ROWS)),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress(lines(ROWS).encode())),
    "lines.json": lambda path: path.write_text(lines(ROWS)),
    "bom.jsonl": lambda path: path.write_text("\ufeff" + lines(ROWS), encoding="utf-8"),
    "list.json": lambda path: path.write_text(json.dumps(ROWS)),
    "pretty.json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "rows.parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path),
    "rows.csv": write_csv,
    "rows.tsv": write_csv,
}


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind(name: str, in_folder: bool, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    source = tmp_path if in_folder else tmp_path / name
    found = list(read_records(str(source), "train"))
    assert [(row["problem"], str(row["answer"])) for row in found] == [("What is 1 - 1?", "0"), ("What is 1 + 1?", "2")]


@pytest.mark.parametrize("with_splits", [False, True])
def test_a_folder_of_save_to_disk(with_splits: bool, tmp_path: Path) -> None:
    one = datasets.Dataset.from_list(ROWS)
    (datasets.DatasetDict({"train": one, "test": one.select([0])}) if with_splits else one).save_to_disk(tmp_path / "d")
    assert list(read_records(f"{tmp_path}/d", "train")) == ROWS
    if with_splits:
        assert list(read_records(f"{tmp_path}/d", "test")) == ROWS[:1]
        with pytest.raises(ValueError, match="no split dev .*train, test"):
            list(read_records(f"{tmp_path}/d", "dev"))


def test_the_name_of_a_format_is_no_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps([{"problem": "not asked for"}]))
    with pytest.raises(ValueError, match="no such file or folder"):
        list(read_records("json", "train"))


def test_a_folder_with_splits(tmp_path: Path) -> None:
    for name, rows in (("train.jsonl", ROWS), ("test.jsonl", ROWS[:1])):
        (tmp_path / name).write_text(lines(rows))
    assert [list(read_records(str(tmp_path), split)) for split in ("train", "test")] == [ROWS, ROWS[:1]]


def test_an_empty_cell_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('problem,answer,solution\nHow many?,,"so \\boxed{0}"\n')
    (record,) = read_records(f"{tmp_path}/rows.csv", "train")
    assert label(record) == "0"


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("Compute f(1,2).,5", "rows.csv line 3: more cells than columns"),
        ('"A 5" pipe, how long?",5', "rows.csv, the row behind line 2: ',' expected after '\"'"),
    ],
)
def test_a_row_that_is_not_what_the_columns_say_is_named(row: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(f'problem,answer\n"What, is 3?",3,\n{row}\nWhat is 6"?,6\n')
    result = prepared("math", f"{tmp_path}/rows.csv", "--output", f"{tmp_path}/out")
    assert result.returncode == 2 and named in result.stderr


@pytest.mark.parametrize("kind", ["file", "hub"])
def test_short_floats_are_the_decimals_that_were_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {
        "answer": pa.array([1234.56, 16777.1, 0.1], pa.float32()),
        "half": pa.array(np.array([0.1, 2.5, 3.3], np.float16)),
        "double": pa.array([1234.56005859375, None, 1e16]),
    }
    table = pa.table({"problem": ["What?"] * 3, **columns})
    dataset = datasets.Dataset(datasets.table.InMemoryTable(table))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: dataset.to_iterable_dataset())
    pq.write_table(table, tmp_path / "rows.parquet")
    found = list(read_records({"file": f"{tmp_path}/rows.parquet", "hub": "some/dataset"}[kind], "train"))
    assert [label(record) for record in found] == ["1234.56", "16777.1", "0.1"]
    assert [record["half"] for record in found] == [0.1, 2.5, 3.3]
    assert [record["double"] for record in found] == columns["double"].to_pylist()


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
def test_a_table_in_another_encoding_is_told_to_be_utf8(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_bytes("problem\tanswer\nHow much café?\t5\n".encode(encoding))
    error = prepared("math", f"{tmp_path}/rows.tsv", "--output", f"{tmp_path}/out").stderr
    assert "rows.tsv" in error and "utf-8" in error and error.count("\n") == 1
    assert f"save it as UTF-8, as in `iconv -f LATIN1 -t UTF-8 {tmp_path}/rows.tsv > new.tsv`" in error


WRONG: dict[str, tuple[str, str]] = {
    "open.csv": (
        'problem,answer\nWhat?,1\n\n"Compute 1,5\nWho?,2\n',
        "open.csv, the row behind line 3: unexpected end of data",
    ),
    "empty.jsonl": ("", "no record in it"),
    "head.csv": ("problem,answer\n", "no record in it"),
    "nothing.json": ("[]", "no record in it"),
    "list.jsonl": ("[1]\n", "list.jsonl line 1: "),
    "number.json": ("7", "number.json"),
    "broken.jsonl": ('{"problem": "a", "answer": 1}\n{"problem": ', "broken.jsonl line 2 is not JSON"),
    "latin.jsonl": ('{"problem": "caf\udce9"}\n', "latin.jsonl"),
    "no.parquet": ("PAR1", "no.parquet"),
    "no.jsonl.gz": ("plain", "no.jsonl.gz"),
    "rows.txt": ("What?", "rows.txt: give a file that ends in one of"),
    "columns.jsonl": (
        '{"Aufgabe": "Was?"}\n',
        "or query; there are Aufgabe",
    ),
    "unanswered.jsonl": ('{"problem": "What?", "score": 1}\n', "no answer: "),
    "surrogate.jsonl": ('{"problem": "What \\ud800?", "answer": 1}\n', "surrogate"),
    "deep.jsonl": ('{"problem": "What?", "answer": ' + "[" * 3000 + "]" * 3000 + "}\n", "deep"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_one_line(name: str, tmp_path: Path) -> None:
    text, message = WRONG[name]
    (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    result = prepared("math", f"{tmp_path}/{name}", "--output", f"{tmp_path}/out")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_a_record_that_breaks_a_reader_costs_no_other(tmp_path: Path) -> None:
    strange = [
        {"problem": {"a": [1]}, "answer": 1},
        {"problem": ["x"], "answer": 1},
        {"problem": "\ud800", "answer": 1},
    ]
    (tmp_path / "a.jsonl").write_text(lines([*ROWS, *strange]))
    result = prepared("math", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out", "--val-fraction", "0")
    assert result.stdout.startswith("5 records: 2 train, 0 val; dropped: "), result.stderr


@pytest.mark.parametrize("record", [{"question": "Say hi.", "answer": ""}, {"text": "Say hi."}, {"Problem": "Say hi."}])
def test_benchmarks_are_read_by_the_same_names(record: Row, tmp_path: Path) -> None:
    (tmp_path / "benchmark.jsonl").write_text(lines([record]))
    (tmp_path / "a.jsonl").write_text(lines([{"prompt": "Say hi."}, {"prompt": "Say ho."}]))
    options = ("--val-fraction", "0", "--output", f"{tmp_path}/out", "--benchmarks", f"{tmp_path}/benchmark.jsonl")
    result = prepared("dialogue", f"{tmp_path}/a.jsonl", *options)
    assert result.stdout.startswith("2 records: 1 train, 0 val; dropped: 1 overlaps"), result.stderr


def test_a_question_that_is_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "apps" / "0").mkdir(parents=True)
    (tmp_path / "apps" / "0" / "question.txt").write_bytes(b"caf\xe9")
    error = prepared("apps", f"{tmp_path}/apps", "--output", f"{tmp_path}/out").stderr
    assert error.count("\n") == 1 and "apps/0/question.txt" in error


def test_every_problem_has_an_id_of_its_own(tmp_path: Path) -> None:
    rows = [{"problem": f"What is {n}?", "answer": n, "unique_id": 0} for n in range(3)]
    (tmp_path / "a.jsonl").write_text(lines(rows))
    assert prepared("math", f"{tmp_path}/a.jsonl", "--output", f"{tmp_path}/out").returncode == 0
    files = (f"--problems={tmp_path}/out/problems.jsonl", f"--solutions={tmp_path}/out/solutions.jsonl")
    assert score.main(files) == 0


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"Question": "How many?", "Answer": "4 cm "}, "4 cm "),
        ({"prompt": [USER], "label": {"ä": [1], "on": date(2020, 1, 2)}}, '{"ä": [1], "on": "2020-01-02"}'),
        ({"instruction": "How many?", "expected_answer": 0}, "0"),
    ],
)
def test_a_row_for_a_reward_of_ones_own_has_the_answer_as_text(record: Row, expected: str) -> None:
    row = own_row(record, 3, "mine")
    assert row["reward_model"]["ground_truth"] == expected and row["data_source"] == "mine"
    assert [message["role"] for message in row["prompt"]] == ["user"]


@pytest.mark.parametrize("build", [own_row, dialogue_row])
def test_an_instruction_has_its_input(build: Callable[..., Row]) -> None:
    record = {"instruction": "What is the plural?", "input": "mouse", "answer": "mice"}
    assert build(record, 0, "mine")["prompt"] == [{"role": "user", "content": "What is the plural?\n\nmouse"}]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"question": "How many?", "answer": " "}, "no answer"),
        ({"text": "How many?", "answer": "4"}, "no question: give a column question"),
        ({"prompt": [{"role": "assistant", "content": "I"}], "answer": "4"}, "no question"),
    ],
)
def test_a_record_without_question_or_answer_is_dropped(record: Row, reason: str) -> None:
    with pytest.raises(Dropped, match=reason):
        own_row(record, 0, "mine")
