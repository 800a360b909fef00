"""The files of a run: records of its rollouts, metrics and tokens, and its summary."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from composed_main import composed
from omegaconf import OmegaConf
from rich.console import Console

from recipe.online_refiner import metrics
from recipe.report.console import NUM_COMPARED, print_summary, step_line
from recipe.runs.files import Records, RunDir, read_rows


def record(key: str, verdict: str = "accepted") -> dict[str, Any]:
    texts = {
        "prompt": [{"role": "user", "content": "Add \ud800."}],
        "response": "3",
        "refined": "4",
        "detail": "",
        "feedback": "",
        "data_source": None,
    }
    return {"key": key, "verdict": verdict, "reward": -0.3, "refined_reward": 1.0, **texts}


def test_parts_are_kept_by_step_and_those_of_steps_to_be_done_again_are_put_aside(tmp_path: Path) -> None:
    records = Records(str(tmp_path / "run" / "refinements"))
    records.forget_after(0)
    assert list(records.lines()) == []
    for step in (2, 11, 10):
        for writer in ("w0", "w1"):
            records.write(step, writer, [record(f"{writer}_0_0"), record(f"{writer}_1_0")])
    records.write(12, "w0", [])
    rows = [json.loads(line) for line in records.lines()]
    assert [row["step"] for row in rows] == [2] * 4 + [10] * 4 + [11] * 4
    assert [row["key"] for row in rows[:4]] == ["w0_0_0", "w0_1_0", "w1_0_0", "w1_1_0"]
    assert rows[0]["prompt"][0]["content"] == "Add \ud800."
    for _ in range(2):  # what was undone before stays
        records.forget_after(10)
        assert [json.loads(line)["step"] for line in records.lines()] == [2] * 4 + [10] * 4
        assert len(list((tmp_path / "run" / "refinements" / "undone").glob("*/*.jsonl"))) == 2
    records.write(11, "w0", [record("w0_0_0")])
    records.forget_after(10)
    assert len(list((tmp_path / "run" / "refinements" / "undone").glob("*/*.jsonl"))) == 3


def test_records_on_another_file_system(tmp_path: Path) -> None:
    records = Records("memory://bucket/run/refinements")
    records.write(1, "w0", [record("a_0_0")])
    records.write(2, "w0", [record("a_0_0")])
    records.forget_after(1)
    assert [json.loads(line)["step"] for line in records.lines()] == [1]


def test_metrics_of_steps_to_be_done_again_are_put_aside(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (1, 2, 3):
        run_dir.write_metrics(step, {"loss": 0.5, "nan": float("nan"), "huge": 10**400, "text": "no number"})
    with run_dir.metrics.open("a") as file:
        file.write('{"step": 4, "cut off')
    for _ in range(2):
        run_dir.forget_after(2)
        kept = {"loss": 0.5, "nan": None, "huge": None, "text": None}
        assert list(read_rows(run_dir.metrics)) == [{"step": step, **kept} for step in (1, 2)]
        assert [row["step"] for row in read_rows(tmp_path / "metrics.undone.jsonl")] == [3]
    run_dir.forget_after(0)
    assert run_dir.metrics.read_bytes() == b""
    assert [row["step"] for row in read_rows(tmp_path / "metrics.undone.jsonl")] == [3, 1, 2]


def test_lines_that_a_machine_went_down_in_are_put_aside(tmp_path: Path) -> None:
    run_dir, broken = RunDir(tmp_path), [b"\0\0\0\n", b'{"step": 3, "lo\n', b"\xff{}\n", b"[1]\n", b"{}\n"]
    for step in (1, 2):
        run_dir.write_metrics(step, {"loss": 0.5})
    with run_dir.metrics.open("ab") as file:
        file.writelines([*broken, b"\0\0"])
    assert [row["step"] for row in read_rows(run_dir.metrics) if row] == [1, 2]
    resumed = RunDir(tmp_path)
    assert resumed.forget_after(2) == {"step": 2, "loss": 0.5}
    assert (tmp_path / "metrics.undone.jsonl").read_bytes() == b"".join(broken)
    resumed.write_metrics(2, {"loss": 0.25})
    resumed.write_metrics(3, {"loss": 0.125})
    assert [(row["step"], row["loss"]) for row in read_rows(run_dir.metrics)] == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_a_step_that_is_saved_has_its_whole_number(tmp_path: Path) -> None:
    """The trainer keeps what it has written of a step, with its number, and writes it again after a validation."""
    run_dir, told = RunDir(tmp_path), {"refiner/num_rollouts": 4, "refiner/num_attempted": 1, "refiner/num_accepted": 1}
    saved = {**told, "step": 2, "reward/mean": 0.5, "timing_s/step": 7.0}
    run_dir.write_metrics(2, saved)
    for row in (next(read_rows(run_dir.metrics)), RunDir(tmp_path).forget_after(2)):
        assert step_line(row, 6) == "step  2/6  reward +0.500  refined 1/4  accepted 1/4  7 s"
        RunDir(tmp_path).write_metrics(2, row)


def test_a_step_is_written_again_in_its_place(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step, loss in ((1, 0.5), (1, 0.25), (2, 0.125)):
        run_dir.write_metrics(step, {"loss": loss})
    RunDir(tmp_path).write_metrics(3, {"loss": 0.0})  # a resumed run
    rows = [(row["step"], row["loss"]) for row in read_rows(run_dir.metrics)]
    assert rows == [(1, 0.25), (2, 0.125), (3, 0.0)]
    resumed = RunDir(tmp_path)
    assert resumed.forget_after(2) == {"step": 2, "loss": 0.125}
    resumed.write_metrics(2, {"loss": 0.5})
    assert [(row["step"], row["loss"]) for row in read_rows(run_dir.metrics)] == [(1, 0.25), (2, 0.5)]
    assert RunDir(tmp_path).forget_after(3) == RunDir(tmp_path / "new").forget_after(0) == {}


def test_who_reads_the_config_gets_a_whole_one(tmp_path: Path) -> None:
    run_dir, config = RunDir(tmp_path), composed(f"run_dir={tmp_path}")
    run_dir.write_config(config)
    with (tmp_path / "config.yaml").open() as file:
        first = file.read(100)
        run_dir.write_config(composed(f"run_dir={tmp_path}", "constraint.mode=none"))
        whole = first + file.read()
    assert whole == OmegaConf.to_yaml(config, resolve=True) != (tmp_path / "config.yaml").read_text()


def test_a_step_that_cannot_be_written_again_keeps_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.write_metrics(1, {"loss": 0.5})
    monkeypatch.setattr("recipe.runs.files.to_lines", lambda rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_dir.write_metrics(1, {"loss": 0.25})
    assert [row["loss"] for row in read_rows(run_dir.metrics)] == [0.5]


def test_the_summary_shows_advice_and_a_diff(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    refined = {"refiner/num_rollouts": 8, "refiner/num_attempted": 4, "refiner/failed/truncated": 1}
    run_dir.write_metrics(1, {**metrics.zeros(), "reward/mean": -0.25, "timing_s/step": 7.0, **refined})
    partly = [{**record(f"b_{n}_0"), "refined": f"Just {n}.", "refined_reward": 0.5} for n in range(2)]
    records = [*partly, record("a_0_0"), record("a_0_1"), record("a_1_0", "not_better")]
    Records(str(tmp_path / "refinements")).write(1, "w0", records)
    output = io.StringIO()
    print_summary(Console(file=output, width=120), run_dir)
    text = output.getvalue()
    assert text.count("accepted: ") == 2 and text.count("+ 4") == 1, "equal ones once"
    assert text.index("-> +1.00") < text.index("-> +0.50"), "the highest reward first"
    assert "reward -0.30 -> +1.00" in text and "- 3" in text and "+ 4" in text and "Cut refinements: 25%" in text
    step = json.loads(run_dir.metrics.read_text())
    assert step_line(step, 8) == "step  1/8  reward -0.250  refined 4/8  accepted 0/8  7 s", "no KL is measured"
    assert step_line({**step, "kl_ref/k3": 0.0}, 8).endswith("  KL 0.0000  7 s")
    step |= {"constraint/cross_entropy_accepted": 0.5, "kl_ref/k3": None, "reward/mean": None}
    assert step_line(step, 8).endswith("accepted 0/8  cross-entropy 0.50  KL unknown  7 s")
    assert "  reward unknown  " in step_line(step, 8), "a reward function that returns NaN"


def test_a_summary_shows_no_text_that_a_terminal_obeys(tmp_path: Path) -> None:
    texts = {"response": "\x1b]0;title\x07 3 \x9b2J", "refined": "\x1b[2J4", "detail": "\x1b[2J"}
    Records(str(tmp_path / "refinements")).write(1, "w0", [{**record("a_0_0"), **texts}])
    run_dir, output = RunDir(tmp_path), tmp_path / "output"
    run_dir.write_metrics(1, {**metrics.zeros(), "reward/mean": 0.5, "timing_s/step": 7.0})
    with output.open("w", errors="backslashreplace") as file:
        print_summary(Console(file=file, width=80), run_dir)
    text = output.read_text()
    assert "- \ufffd]0;title\ufffd 3 \ufffd2J" in text and "+ \ufffd[2J4" in text and "Add \\ud800." in text
    assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_the_summary_ends_with_what_was_reached_and_what_is_next(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "a run")
    for step, reward in ((1, -0.5), (2, 0.0), (3, 0.25)):
        numbers = {"reward/mean": reward, "timing_s/step": 7.0, "refiner/num_rollouts": 16}
        run_dir.write_metrics(step, {**metrics.zeros(), **numbers})
    Records(str(run_dir.path / "refinements")).write(3, "w0", [record("a_0_0")])
    output = io.StringIO()
    print_summary(Console(file=output, width=40), run_dir)
    lines = output.getvalue().splitlines()
    assert any(line.startswith("Reward: -0.500 → +0.250. ") and "chance" in line for line in lines)
    assert f"run directory: {run_dir.path}" in lines, "whole, however narrow the terminal is"
    (page,) = [line for line in lines if "page, for a browser" in line]
    assert page.endswith(f": {run_dir.path}/report.html") and (run_dir.path / "report.html").exists()
    assert lines[-1].startswith("next: ") and "online-refiner check" in lines[-1]


def test_the_summary_shows_the_smallest_edits_of_late_steps(tmp_path: Path) -> None:
    run_dir, program = RunDir(tmp_path), [f"    line_{n} = {n}" for n in range(9)]

    def edited(size: int) -> dict[str, Any]:
        texts = {"response": "\n".join(program), "refined": "\n".join([f"edit {size}"] * size + program[size:])}
        return {**record(f"{size}_0_0"), **texts, "refined_reward": 0.2}

    parts = Records(str(tmp_path / "refinements"))
    parts.write(1, "w0", [edited(1)])
    parts.write(2, "w0", [edited(size) for size in (5, 2, 3, 4) for _ in range(NUM_COMPARED // 4)])
    run_dir.write_metrics(2, {**metrics.zeros(), "reward/mean": 0.0, "timing_s/step": 7.0})
    output = io.StringIO()
    print_summary(Console(file=output, width=120), run_dir)
    text = output.getvalue()
    assert text.count("step 2, accepted: reward -0.30 -> +0.20") == 2
    assert [text.count(f"+ edit {size}") for size in range(1, 6)] == [0, 2, 3, 0, 0]
