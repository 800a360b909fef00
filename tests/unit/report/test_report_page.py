"""The page as a file, and the command that writes it: from whole, unfinished, empty and damaged run directories."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recipe.report.arms import group
from recipe.report.page import write
from recipe.report.runs import read_runs

REPOSITORY = Path(__file__).parents[3]
HOSTILE = "</script></pre>--><script>alert(1)</script x <!-- <script \x00 \ud800 \u2028 &amp;"


def scripts_of(page: str) -> list[tuple[str, str]]:
    """Return attributes and texts of the scripts, as a browser finds them."""
    return re.findall(r"<script([^>]*)>(.*?)</script>", page, flags=re.DOTALL)


def report(paths: list[Path], output: Path, num_rows: int = 300) -> str:
    write(group(read_runs(paths)[0]), output, num_rows=num_rows)
    return output.read_text(encoding="utf-8")


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "recipe.report", *map(str, arguments)]
    return subprocess.run(call, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


def test_model_written_text_is_data_and_nothing_else(write_run: Callable, refinement: Callable, tmp_path: Path) -> None:
    rows = [
        refinement(
            1, "accepted", response=HOSTILE, refined=HOSTILE + "!", prompt=[{"role": "user", "content": HOSTILE}]
        ),
        refinement(2, HOSTILE, detail=HOSTILE),
    ]
    config = {"trainer": {"experiment_name": HOSTILE.replace("\ud800", "")}}  # YAML has no halves of characters
    text = report([write_run("a", [0.0], config=config, refinements=rows)], tmp_path / "page.html")
    (kind, data), (no_kind, code) = scripts_of(text)
    assert (kind, no_kind) == (' type="application/json" id="data"', "") and text.lower().count("<script") == 2
    assert not set("<>&") & set(data), "a browser ends it at </script too"
    shown = HOSTILE.replace("\x00", "⟨00⟩").replace("\ud800", "⟨D800⟩")
    assert json.loads(data)["rows"][0]["pieces"][:2] == [0, shown]
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text, "the browser runs this script and no other"


def test_the_tables_hold_the_numbers(write_run: Callable, refinement: Callable, tmp_path: Path) -> None:
    rows = [refinement(step, "accepted" if step < 10 else "truncated") for step in range(40)]
    first, second = (
        write_run(name, [0.0, reward, reward], refinements=own, metrics={"val-core/apps/acc/mean@1": score})
        for name, reward, own, score in (("a", 0.5, rows, 0.5), ("b", 1.0, [], 0.8))
    )
    text = report([first, second], tmp_path / "page.html", 8)
    words = " ".join(re.sub(r"<[^>]*>", " ", text[: text.index('id="data"')]).split())
    assert "0.500 ± 0.236 0.650 ± 0.212" in words, "final reward over the last three steps, last validation score"
    assert "Responses truncated accepted x 40 30 75 % 10 25 %" in words
    assert "These counts are of all 40 responses. The table below holds 8 of them" in words


def test_a_run_that_is_still_going_one_without_refinements_and_no_run(
    write_run: Callable, refinement: Callable, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    going, plain = write_run("going", [0.0, 0.5], refinements=[refinement(1, "accepted")]), write_run("plain", [0.1])
    half = '{"step": 2, "response": "é'.encode()[:-1]
    for name, cut in (("metrics", b'{"step": 3, "rew'), ("refinements/000001.w0", half)):
        with (going / f"{name}.jsonl").open("ab") as file:
            file.write(cut)
    result = command(going, plain, tmp_path / "empty", "--output", tmp_path / "out")
    line = f"left out: {tmp_path / 'empty'}: not a run directory (config.yaml is missing)"
    assert (result.returncode, result.stderr) == (0, f"{line}\n")
    page = tmp_path / "out" / "report.html"
    assert result.stdout == f"{page}\n"
    assert len(json.loads(scripts_of(page.read_text())[0][1])["rows"]) == 1
    plain_page = report([plain], tmp_path / "plain.html")
    assert "No run has refinements" in plain_page and "Improvement ratio, " in plain_page, "said, not drawn as 0"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "not a run directory (config.yaml is missing)"),
        ({"config.yaml": "a: 1"}, "no step is finished yet"),
        ({"config.yaml": "a: 1", "metrics.jsonl": '{"step": 1'}, "no step is finished yet"),
        ({"config.yaml": "a: [", "metrics.jsonl": '{"step": 1}\n'}, "not YAML"),
        ({"config.yaml": "a: 1", "metrics.jsonl": '{"step": 1}\nnot JSON\n'}, ", metrics, line 2: not JSON"),
        (
            {"config.yaml": "a: 1", "metrics.jsonl": '{"step": 1}\n', "refinements/1.w0.jsonl": "x\n"},
            "refinements, line 1",
        ),
    ],
)
def test_nothing_to_show_is_one_line(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    result = command(tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and message in result.stderr and result.stderr.count("\n") == 1
