"""The report: what it reads from run directories, and what stands on the page."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.report.page import write_report
from recipe.report.runs import curve, read_run

REPOSITORY = Path(__file__).parents[3]


def write_run(path: Path, arm: str, rewards: list[float], hostile: str = "") -> Path:
    path.mkdir()
    (path / "config.yaml").write_text(f"trainer: {{experiment_name: {arm}}}\n")
    metrics = [
        {
            **{"step": step, "reward/mean": reward, "kl_ref/k3": None if step == 2 else 0.1 * step},
            **{"refiner/improvement_ratio": 0.25, "timing_s/step": 9.0, "timing_s/gen": 4.0, "tokens/rollout": 64},
        }
        for step, reward in enumerate(rewards, 1)
    ]
    pair = {"key": "u_0_0", "prompt": [{"role": "user", "content": f"Add them. {hostile}"}], "response": "x - y"}
    refinements = [
        {**pair, "step": 1, "refined": f"x + y{hostile}", "reward": -0.3, "refined_reward": 1.0, "verdict": "accepted"},
        {**pair, "step": 2, "refined": None, "reward": 1.0, "refined_reward": None, "verdict": "max_reward"},
    ]
    tokens = [{"step": 1, "key": "u_0_0", "response": [["x", -0.1], ["-$", -2.0]], "refined": [["x", -0.1]]}]
    files = {"metrics": metrics, "refinements": [{**row, "detail": ""} for row in refinements], "tokens": tokens}
    for name, rows in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_curve_is_mean_and_spread_over_the_seeds_of_an_arm(tmp_path: Path) -> None:
    first = read_run(write_run(tmp_path / "a", "x", [0.0, 1.0, 2.0]))
    second = read_run(write_run(tmp_path / "b", "x", [1.0, 1.0]))
    steps, mean, spread = curve([first, second], "reward/mean")
    assert steps.tolist() == [1, 2, 3] and mean.tolist() == [0.5, 1.0, 2.0] and spread.tolist() == [0.5, 0.0, 0.0]
    steps, *_ = curve([first], "kl_ref/k3")
    assert steps.tolist() == [1, 3], "what was not measured leaves a gap"


def test_the_page_is_whole_and_model_text_cannot_break_it(tmp_path: Path) -> None:
    hostile = "</pre><script>alert(1)</script>"
    runs = [
        read_run(write_run(tmp_path / "a", "dynamic", [0.0, 0.5, 0.7], hostile)),
        read_run(write_run(tmp_path / "b", "none", [0.0, 0.1, 0.2])),
    ]
    page, *images = write_report(runs, tmp_path / "out", 300)
    text = page.read_text()
    assert text.count("<script>") == 1 and "&lt;script&gt;" in text
    assert not re.search(r'(src|href)="(?!data:)', text), "nothing is fetched from elsewhere"
    assert "<del>-</del><ins>+</ins>" in text
    assert "<td>dynamic</td>" in text and "+0.400" in text  # mean of the last three steps
    assert {image.name for image in images} == {"curves.png", "costs.png", "tokens_1.png", "tokens_2.png"}
    assert all(image.read_bytes().startswith(b"\x89PNG") for image in images)


def test_many_refinements_are_thinned_out_evenly(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "x", [0.0])
    row = json.loads((path / "refinements.jsonl").read_text().splitlines()[0])
    (path / "refinements.jsonl").write_text("".join(json.dumps({**row, "step": n}) + "\n" for n in range(1000)))
    page, *_ = write_report([read_run(path)], tmp_path / "out", 50)
    steps = [
        int(step)
        for step in re.findall(r'data-verdict="accepted"><td>a</td><td class="number">(\d+)', page.read_text())
    ]
    assert len(steps) == 50 and math.isclose(sum(steps) / 50, 490, abs_tol=20)


def test_the_command(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "x", [0.0, 1.0])
    command = [sys.executable, "scripts/report.py", str(run)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert (run / "report" / "report.html").is_file() and str(run) in result.stdout


@pytest.mark.parametrize("files", [(), ("config.yaml",)])
def test_no_run_there(files: tuple[str, ...], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_text("trainer: {experiment_name: x}\n")
    command = [sys.executable, "scripts/report.py", str(tmp_path)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {tmp_path}: ") and result.stderr.count("\n") == 1
