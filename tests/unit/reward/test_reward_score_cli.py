import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from reward.score import main

PROBLEMS = [
    {"problem_id": 1, "input_output": {"inputs": ["2\n"], "outputs": ["4\n"]}},
    {"problem_id": "add", "input_output": json.dumps({"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"})},
]
SOLUTIONS = [
    {"problem_id": 1, "response": "```python\nprint(int(input()) * 2)\n```"},
    {"problem_id": "add", "response": "```python\ndef add(a, b):\n    return a - b\n```"},
    {"problem_id": "add", "response": "no idea"},
]
DEEP_PROBLEM = {
    "problem_id": 1,
    "input_output": f'{{"inputs": [[1]], "outputs": [{"[" * 600}{"]" * 600}], "fn_name": "f"}}',
}


def write(path: Path, rows: list[dict[str, object]], encoding: str = "utf-8") -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding=encoding)
    return str(path)


def test_command_prints_one_object_a_line(tmp_path: Path) -> None:
    problems = write(tmp_path / "p", PROBLEMS, "utf-8-sig")  # with the mark that Windows writes
    solutions = write(tmp_path / "s", SOLUTIONS)
    result = subprocess.run(
        [sys.executable, "-m", "reward.score", "--problems", problems, "--solutions", solutions, "--workers", "2"],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    names = ("problem_id", "score", "outcome", "num_passed", "num_tests", "detail", "feedback")
    wrong = "It runs, but fails 1 of 1 tests, test 1 first."
    assert [tuple(row[name] for name in names) for row in rows] == [
        (1, 1.0, "pass", 1, 1, "", ""),
        ("add", -0.3, "fail", 0, 1, "test 1: wrong answer", wrong),
        ("add", -1.0, "compile_error", 0, 1, "no code found", "There is no program in it."),
    ]


@pytest.mark.parametrize(
    ("problems", "solutions", "message"),
    [
        (PROBLEMS, [{"problem_id": 2, "response": ""}], "unknown problem_id 2"),
        (PROBLEMS, [{"problem_id": 1}], "no 'response'"),
        (PROBLEMS, [{"problem_id": 1, "response": None}], "response is NoneType: give text"),
        ([{"problem_id": 1}], SOLUTIONS, "no 'input_output'"),
        (PROBLEMS + PROBLEMS, SOLUTIONS, "problem_id 1 occurs twice"),
        ([{"problem_id": 1, "input_output": {"inputs": [], "outputs": []}}], SOLUTIONS, "problem 1: no tests"),
        ([DEEP_PROBLEM], SOLUTIONS, "problem 1: output 0 is nested more than 200 deep"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    problems: list[dict[str, object]],
    solutions: list[dict[str, object]],
    message: str,
) -> None:
    status = main(["--problems", write(tmp_path / "p", problems), "--solutions", write(tmp_path / "s", solutions)])
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert message in captured.err


def test_bad_json_missing_file_and_bad_timeout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems, solutions = write(tmp_path / "p", PROBLEMS), write(tmp_path / "s", SOLUTIONS)
    broken = tmp_path / "broken"
    broken.write_text('{"problem_id": 1')
    assert main(["--problems", problems, "--solutions", str(broken)]) == 2
    assert "line 1 is not JSON" in capsys.readouterr().err
    for option, path, reason in (
        ("--problems", tmp_path / "none", "No such file or directory"),
        ("--solutions", tmp_path / "none", "No such file or directory"),
        ("--solutions", tmp_path, "Is a directory"),
    ):
        assert main(["--problems", problems, "--solutions", solutions, option, str(path)]) == 2
        said = f"error: {path}: {reason}: give a file of JSON lines, as in {option} {option[2:]}.jsonl\n"
        assert capsys.readouterr().err == said
    assert main(["--problems", problems, "--solutions", solutions, "--timeout", "-1"]) == 2
    assert "test_s must be a number above 0" in capsys.readouterr().err
    assert main(["--problems", problems, "--solutions", solutions, "--workers", "0"]) == 2
    assert "--workers) is 0: set it to at least 1" in capsys.readouterr().err


def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = write(tmp_path / "p", PROBLEMS)
    deep, cut, noise = tmp_path / "deep", tmp_path / "cut.gz", tmp_path / "noise.gz"
    deep.write_text("[" * 100_000)
    packed = gzip.compress(json.dumps(SOLUTIONS[0]).encode() * 100)
    cut.write_bytes(packed[:-20])
    noise.write_bytes(packed[:20] + bytes(20) + packed[40:])
    for file in (deep, cut, noise):
        assert main(["--problems", problems, "--solutions", str(file)]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1), file
