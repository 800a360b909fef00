"""What a table's columns mean: found by name, kept or named if they are not read, refused if they are no text."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_command import prepared
from omegaconf import OmegaConf

from recipe.data_preparation.cache import wrong_with_cache
from recipe.data_preparation.fields import Dropped, given
from recipe.data_preparation.math_rows import math_row
from recipe.online_refiner.verl_glue.preflight.files import Files
from reward import score

Row = dict[str, Any]
ASKED = [f"What is {n} plus {n}?" for n in range(4)]


def table(asked: str = "question", /, **columns: Any) -> list[Row]:
    """Return records that ask ``ASKED``; a column is one value for all, or made of the record's number."""
    values = [{name: of(n) if callable(of) else of for name, of in columns.items()} for n in range(len(ASKED))]
    return [{asked: text, **value} for text, value in zip(ASKED, values, strict=True)]


def right(n: int) -> str:
    return str(2 * n)


VERLS: list[Row] = [
    {
        "data_source": "their/task",
        "prompt": [{"role": "user", "content": f"{text} End with 'Answer: ' and a number."}],
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": right(n)},
        "extra_info": {"index": f"id-{n}", "level": n},
    }
    for n, text in enumerate(ASKED)
]


class Prepared:
    """What ``prepare`` makes of records.

    Args:
        folder: Where to write.
        kind: The subcommand.
        source: Records, or the text of a file.
        options: Options of the command.
        file: Name of the file that it reads.
    """

    def __init__(
        self, folder: Path, kind: str, source: Sequence[Row] | str, *options: str, file: str = "a.jsonl"
    ) -> None:
        """Run it."""
        path, output = folder / file, folder / "out"
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(list(source)), path)
        else:
            lines = source if isinstance(source, str) else "".join(json.dumps(row) + "\n" for row in source)
            path.write_text(lines, encoding="utf-8")
        result = prepared(kind, str(path), "--output", str(output), "--val-fraction", "0", *options)
        self.status, self.said = result.returncode, result.stdout + result.stderr
        assert self.said.count("\n") == 1, self.said
        self.rows = pq.read_table(output / "train.parquet").to_pylist() if not self.status else []
        self.card = (output / "card.md").read_text() if not self.status else ""

    @property
    def labels(self) -> list[str]:
        """What is right, by row."""
        return [row["reward_model"]["ground_truth"] for row in self.rows]

    @property
    def questions(self) -> list[str]:
        """The last message of each row's prompt."""
        return [row["prompt"][-1]["content"] for row in self.rows]


@pytest.mark.parametrize("kind", ["rows", "math", "gsm8k"])
@pytest.mark.parametrize("column", ["target", "output", "response", "correct", "Lösung"])
def test_a_table_without_a_column_of_answers_is_refused(kind: str, column: str, tmp_path: Path) -> None:
    records = table(**{column: right})
    found = Prepared(tmp_path, kind, records)
    assert found.status == 2 and f"there are question, {column}" in found.said and "--answer" in found.said
    assert Prepared(tmp_path, kind, records, "--answer", column).labels == ["0", "2", "4", "6"]


def test_a_reward_may_need_no_answers(tmp_path: Path) -> None:
    found = Prepared(tmp_path, "rows", table(target=right), "--no-answers")
    assert found.labels == [""] * 4 and "columns not read: target" in found.said
    assert Prepared(tmp_path, "rows", table(), "--no-answers").labels == [""] * 4
    assert "give one of them" in Prepared(tmp_path, "rows", table(), "--no-answers", "--answer", "a").said


@pytest.mark.parametrize("text", ["Answer ", " answer", "\ufeff ANSWER"])
def test_a_header_with_blanks_and_capitals(text: str, tmp_path: Path) -> None:
    first, _, name = text.rpartition("\ufeff")
    rows = "".join(f"{n},{asked}\n" for n, asked in enumerate(ASKED))
    found = Prepared(tmp_path, "rows", f"{first}\ufeff{name}, Question\n{rows}", file="a.csv")
    assert (found.labels, found.questions) == (["0", "1", "2", "3"], ASKED)


def test_columns_of_one_name() -> None:
    assert given({"Answer": 1, "answer": 2}, "answer") == 2
    assert given({"Answer": 1, "ANSWER ": 1}, "answer") == 1
    assert given({"Answer": None, "ANSWER": 0}, "answer") == 0
    with pytest.raises(Dropped, match="'Answer', 'ANSWER' all mean answer"):
        given({"Answer": 1, "ANSWER": 2}, "answer")


def test_a_header_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    found = Prepared(tmp_path, "rows", "question,answer,answer\nHow?,1,2\n", file="a.csv")
    assert found.status == 2 and "several columns are named answer" in found.said


@pytest.mark.parametrize(
    ("column", "path"),
    [({"value": "4", "other": 1}, "labels.value"), ({"a": {"b": ["4"]}}, "LABELS.a.b"), ("4", "labels")],
)
def test_an_answer_within_an_object(column: Any, path: str, tmp_path: Path) -> None:
    assert Prepared(tmp_path, "math", table(labels=column), "--answer", path).labels == ["4"] * 4


def test_a_chosen_answer_goes_before_the_usual_names(tmp_path: Path) -> None:
    records = table(answer="no", label="no", solution=lambda n: f"so \\boxed{{{2 * n}}}")
    for kind in ("math", "gsm8k"):
        assert Prepared(tmp_path, kind, records, "--answer", "solution").labels == ["0", "2", "4", "6"]
    records[0]["solution"] = None
    found = Prepared(tmp_path, "rows", records, "--answer", "solution")
    assert len(found.labels) == 3 and "1 no answer; columns not read: answer, label" in found.said


@pytest.mark.parametrize("file", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("kind", ["rows", "math", "gsm8k"])
def test_rows_of_verl_are_read_as_they_are(kind: str, file: str, tmp_path: Path) -> None:
    found = Prepared(tmp_path, kind, VERLS, file=file)
    assert "dropped: none; data.val_files" in found.said
    for row, expected in zip(found.rows, VERLS, strict=True):
        assert {**row, "extra_info": None} == {**expected, "extra_info": None}
        assert row["extra_info"].items() >= expected["extra_info"].items()
    renamed = Prepared(tmp_path, kind, VERLS, "--name", "mine")
    assert {row["data_source"] for row in renamed.rows} == {"mine"}


def test_what_prepare_wrote_is_read_again(tmp_path: Path) -> None:
    first = Prepared(tmp_path, "math", table(answer=right, level="Level 1"))
    assert Prepared(tmp_path, "math", first.rows, file="again.parquet").rows == first.rows


@pytest.mark.parametrize("kind", ["rows", "math", "dialogue"])
def test_columns_that_are_not_read_are_named_and_can_be_kept(kind: str, tmp_path: Path) -> None:
    records = table("prompt", answer=right, topic="sums", where=lambda n: {"page": n, "none": {}}, empty="")
    found = Prepared(tmp_path, kind, records)
    unread = "answer, topic, where" if kind == "dialogue" else "topic, where"
    assert f"; columns not read: {unread} (--keep NAME" in found.said
    assert "## Columns read\n- prompt: 4 records\n" in found.card and "- topic: 4 records\n" in found.card
    found = Prepared(tmp_path, kind, records, "--keep", "topic,where.page")
    assert [row["extra_info"]["where.page"] for row in found.rows] == [0, 1, 2, 3]
    assert {row["extra_info"]["topic"] for row in found.rows} == {"sums"}
    found = Prepared(tmp_path, kind, records, "--keep", "where")
    assert found.rows[3]["extra_info"]["where"] == {"page": 3, "none": None}


def test_many_columns_that_are_not_read(tmp_path: Path) -> None:
    found = Prepared(tmp_path, "rows", table(answer=right, **{f"c{n}": n for n in range(10)}))
    assert "c6, c7 and 2 more" in found.said and "- c9: 4 records\n" in found.card


def test_what_a_record_says_of_itself_is_kept(tmp_path: Path) -> None:
    records = table(answer=right, extra_info=lambda n: {"level": n, "question": "the same", "none": {}})
    found = Prepared(tmp_path, "rows", records)
    assert [row["extra_info"]["level"] for row in found.rows] == [0, 1, 2, 3]
    assert found.rows[2]["extra_info"] == {"level": 2, "question": "the same", "none": None, "index": 2}
    assert "columns not read: extra_info" in Prepared(tmp_path, "rows", table(answer=right, extra_info="text")).said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--keep", "topik"),
            "--keep topik: no such column, or nothing in it; there are question, answer, level, empty",
        ),
        (("--keep", "empty"), "--keep empty: no such column, or nothing in it"),
        (("--keep", "level"), "several types in level (int, str)"),
        (("--question", "question,level.x", "--answer", "anser"), "give a column anser; there are question, answer"),
        (("--question", "Frage"), "give a column Frage; there are question, answer"),
    ],
)
def test_names_of_columns_that_are_wrong(options: Sequence[str], words: str, tmp_path: Path) -> None:
    found = Prepared(tmp_path, "rows", table(answer=right, level=lambda n: n or "hard", empty=None), *options)
    assert found.status == 2 and words in found.said


@pytest.mark.parametrize("kind", ["rows", "math", "gsm8k"])
def test_a_question_in_several_columns(kind: str, tmp_path: Path) -> None:
    records = [
        {"Body": f"Ann has {n} apples and {n} pears.", "Question": "How many is that?", "Answer": right(n)}
        for n in range(4)
    ]
    found = Prepared(tmp_path, kind, records, "--question", "body,question")
    assert found.labels == ["0", "2", "4", "6"]
    assert found.questions[3].startswith("Ann has 3 apples and 3 pears.\n\nHow many is that?")
    found = Prepared(tmp_path, kind, [{**record, "Question": f"{n}?"} for n, record in enumerate(records)])
    assert "columns not read: Body (--keep NAME puts one in extra_info, --question NAME,NAME joins" in found.said


def test_options_of_a_question_are_no_text(tmp_path: Path) -> None:
    records = table(choices=["1", "2", "3"], answer=2)
    assert "columns not read: choices" in Prepared(tmp_path, "rows", records).said
    found = Prepared(tmp_path, "rows", records, "--question", "question,choices")
    assert found.status == 2 and "column choices holds list, and --question joins columns of text" in found.said


@pytest.mark.parametrize(
    "media",
    [
        {"image": "images/1.jpg"},
        {"images": [{"bytes": b"\x89PNG", "path": None}]},
        {"decoded_image": {"bytes": None, "path": "a.png"}},
        {"Image_7": "aGVsbG8="},
        {"picture_url": "https://example.org/a"},
        {"scene": b"\x89PNG"},
        {"scene": "scenes/7.webp"},
        {"scene": ["data:image/png;base64,aGVsbG8="]},
        {"video_path": "a"},
        {"audio": {"array": [0.5], "sampling_rate": 16000, "path": None}},
    ],
)
@pytest.mark.parametrize("kind", ["rows", "math", "gsm8k", "dialogue"])
def test_what_a_question_shows_in_a_column_is_refused(kind: str, media: Row, tmp_path: Path) -> None:
    records = table("prompt", answer=right)
    found = Prepared(tmp_path, kind, [{**record, **media} for record in records], file="a.parquet")
    assert found.status == 2 and f"column {next(iter(media))} holds a picture, film, sound" in found.said
    (name,) = media
    records[0][name] = media[name]
    found = Prepared(tmp_path, kind, records, file="b.parquet")
    assert len(found.rows) == 3 and "1 not text alone" in found.said


@pytest.mark.parametrize("shown", ["<image>Find x", "See <image 1>.", "<video>\nWho?", "![](a.png)", '<img src="a">'])
@pytest.mark.parametrize("kind", ["rows", "math"])
def test_what_a_question_shows_in_its_text_is_refused(kind: str, shown: str, tmp_path: Path) -> None:
    found = Prepared(tmp_path, kind, [{"question": shown, "answer": 1}, {"question": "What is x?", "answer": 2}])
    assert found.labels == ["2"] and "1 not text alone" in found.said
    assert "- row 1: the question shows a picture, film or sound: " in found.card


def test_what_is_no_picture(tmp_path: Path) -> None:
    records = table(answer="logo.png", num_images=2, image_id=lambda n: n, has_image=False, image=None, images=[])
    records[0]["question"] = "What does <video>a</video> show?"
    assert len(Prepared(tmp_path, "rows", records).rows) == 4


def test_pictures_of_datasets_are_refused_without_reading_them(tmp_path: Path) -> None:
    rows = [{"question": "How?", "answer": "1", "scan": {"bytes": b"none", "path": None}}]
    datasets.Dataset.from_list(rows).cast_column("scan", datasets.Audio()).save_to_disk(tmp_path / "saved")
    result = prepared("rows", f"{tmp_path}/saved", "--output", f"{tmp_path}/out")
    assert result.returncode == 2 and "column scan holds a picture, film, sound" in result.stderr


@pytest.mark.parametrize(("kind", "form"), [("rows", "{}"), ("math", "{}"), ("gsm8k", "so\n#### {}")])
def test_two_labels_of_one_question_are_left_out(kind: str, form: str, tmp_path: Path) -> None:
    pairs = [("Which is it?", "3"), ("Which  is\nit?", "4"), ("which is it", " 3 "), ("Same?", "5"), ("Same?", "5 ")]
    found = Prepared(tmp_path, kind, [{"question": a, "answer": form.format(b)} for a, b in pairs])
    assert "dropped: 3 contradictory labels, 1 duplicate" in found.said and len(found.rows) == 1
    assert "- row 2: 4\n" in found.card


@pytest.mark.parametrize(
    ("second", "kept"),
    [({"inputs": ["1\n"], "outputs": ["3\n"]}, 0), ({"inputs": ["2\n", "1 "], "outputs": ["4\n", "2 "]}, 1)],
)
def test_two_outputs_of_one_input_contradict(second: Row, kept: int, tmp_path: Path) -> None:
    problems = [("Double it.", {"inputs": ["1\n"], "outputs": ["2\n"]}), ("Double  it.", second)]
    other = {"question": "Halve it.", "input_output": {"inputs": ["2\n"], "outputs": ["1\n"]}}
    found = Prepared(tmp_path, "apps", [*({"question": a, "input_output": b} for a, b in problems), other])
    assert len(found.rows) == kept + 1
    assert ("contradictory" in found.said) == (not kept)


@pytest.mark.parametrize("kind", ["rows", "math", "gsm8k"])
@pytest.mark.parametrize("answer", ["1e400", "NaN", "-Infinity", "[1, NaN]", '{"a": {"b": [2, 1e400]}}'])
def test_numbers_that_are_not_finite_are_no_answer(kind: str, answer: str, tmp_path: Path) -> None:
    found = Prepared(tmp_path, kind, f'{{"question": "A?", "answer": {answer}}}\n{{"question": "B?", "answer": 1}}\n')
    assert found.labels == ["1"] and "dropped: 1 no answer" in found.said


def test_an_answer_that_a_table_calls_no_number(tmp_path: Path) -> None:
    assert Prepared(tmp_path, "rows", "question,answer\nA?,NaN\nB?,1\n", file="a.csv").labels == ["1"]


@pytest.mark.parametrize("nothing", [None, "", "  ", [], {"text": []}])
def test_rows_without_an_answer_are_counted(nothing: Any, tmp_path: Path) -> None:
    records: list[Row] = [*table(answer=nothing), {"question": "No key?"}, {"question": "And this?", "answer": 0}]
    found = Prepared(tmp_path, "rows", records)
    assert found.labels == ["0"] and "dropped: 5 no answer" in found.said
    found = Prepared(tmp_path, "rows", table(answer=nothing, target=right))
    assert found.status == 2 and "there are question, answer, target" in found.said


def test_a_chat_asks_and_its_reply_is_no_answer(tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "4"}] for text in ASKED]
    found = Prepared(tmp_path, "rows", [{"messages": chat} for chat in chats])
    assert found.status == 2 and "there are messages" in found.said
    found = Prepared(tmp_path, "rows", [{"messages": chat, "answer": [1]} for chat in chats])
    assert (found.questions, found.labels) == (ASKED, ["[1]"] * 4)


def test_a_parquet_file_without_rows_and_one_with_brackets_in_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": pa.array([], pa.string())}), tmp_path / "none.parquet")
    (tmp_path / "zero.parquet").touch()
    for name, words in (("none", "none.parquet: no record in it"), ("zero", "zero.parquet: the file is empty")):
        result = prepared("rows", f"{tmp_path}/{name}.parquet", "--output", f"{tmp_path}/out")
        assert result.returncode == 2 and words in result.stderr
    assert Prepared(tmp_path, "rows", table(answer=right), file="a[1]*?.parquet").labels == ["0", "2", "4", "6"]


@pytest.mark.parametrize("form", ["stream", "file"])
def test_files_of_arrow(form: str, tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist(table(answer=right))
    with getattr(pa.ipc, f"new_{form}")(str(tmp_path / "a.arrow"), batch.schema) as writer:
        writer.write_batch(batch)
    result = prepared("rows", f"{tmp_path}/a.arrow", "--output", f"{tmp_path}/out", "--val-fraction", "0")
    assert result.stdout.startswith("4 records: 4 train"), result.stderr


@pytest.mark.parametrize("answer", ["<b>4</b>", "Room 12"])
def test_the_card_names_a_label_that_cannot_be_read(answer: str) -> None:
    with pytest.raises(Dropped) as caught:
        math_row({"question": "How many?", "answer": answer}, 0, "m")
    assert answer[:4] in caught.value.detail


def test_score_names_a_file_that_is_not_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl.gz").write_text('{"problem_id": 1}')
    assert score.main([f"--{name}={tmp_path}/a.jsonl.gz" for name in ("problems", "solutions")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/a.jsonl.gz: Not a gzipped file" in error and "give JSON lines" in error


def test_one_local_file_needs_no_cache(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(table(answer=right)), tmp_path / "a.parquet")
    for source, status in ((tmp_path / "a.parquet", 0), (tmp_path, 2)):
        result = subprocess.run(
            [sys.executable, "-m", "recipe.commands", "prepare", "rows", source, "--output", tmp_path / "out"],
            env={**os.environ, "HF_HOME": "/proc/none", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == status, result.stderr
    assert "the cache /proc/none/datasets cannot be written" in result.stderr and "HF_HOME" in result.stderr


def test_a_dry_run_names_the_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_with_cache() is None
    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    pq.write_table(pa.Table.from_pylist(VERLS), tmp_path / "a.parquet")
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"model": {"external_lib": None}},
            "data": {"train_files": str(tmp_path / "a.parquet"), "cache_dir": None, "custom_cls": {"path": None}},
        }
    )
    with pytest.raises(ValueError, match=r"data.train_files: the cache .*file/cache cannot .* HF_DATASETS_CACHE or"):
        Files(config).data("train_files")


def test_images_of_a_named_column_are_kept(tmp_path: Path) -> None:
    """The same words about another image are another question; places that the text has stay."""
    (tmp_path / "a.png").write_bytes(b"A")
    shots = [[b"A"], [b"B"], [str(tmp_path / "a.png"), b"C"], [b"A"], [b"A"], ["gone.png"]]
    asked = ["Count.", "Count.", "Is <image> like <image>?", "count", "Are <image> and <image> alike?", "Where?"]
    records = [
        {
            "question": text,
            "answer": "1",
            "shot": [
                {"bytes": one, "path": None} if isinstance(one, bytes) else {"bytes": None, "path": one} for one in shot
            ],
        }
        for text, shot in zip(asked, shots, strict=True)
    ]
    found = Prepared(tmp_path, "rows", records, "--images", "shot", file="a.parquet")
    assert found.questions == ["<image>Count.", "<image>Count.", "Is <image> like <image>?"]
    assert [[one["bytes"] for one in row["images"]] for row in found.rows] == [[b"A"], [b"B"], [b"A", b"C"]]
    assert "1 duplicate" in found.said and "2 images do not fit" in found.said
    assert "the prompt has 2 places (<image>) for 1 images" in found.card and "gone.png" in found.card
    assert "columns not read" not in found.said
    assert Prepared(tmp_path, "rows", records, file="b.parquet").status == 2, "without the option they are refused"
