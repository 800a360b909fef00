"""What a terminal and a file show of a run: a real pseudo-terminal, a real pipe."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_run import TEXTS, record
from rich.console import Console
from terminal import on_terminal

from recipe.online_refiner import metrics
from recipe.report import console
from recipe.report.console import View, _watch
from recipe.runs.files import Records, RunDir

TESTS = Path(__file__).parents[2]
NUMBERS = {**metrics.zeros(), "reward/mean": 0.5, "refiner/num_rollouts": 8, "timing_s/step": 60.0}
NOISY_RUN = """
import json, logging, os, sys, warnings
from composed_main import composed
from recipe.report import console
from made_run import record
from recipe.runs.files import Records, RunDir
logging.basicConfig()  # its handler keeps today's sys.stderr
run_dir = RunDir(sys.argv[1])
with console.CONSOLES["progress"](composed(f"run_dir={sys.argv[1]}", "trainer.total_training_steps=2")):
    print("noise of the driver")
    logging.error("noise of a logger")
    warnings.warn("noise of a warning")
    os.system("echo noise of a child; echo noise of a child >&2")
    for step in (1, 2):
        run_dir.write_stage("the policy answers", step, 2)
        run_dir.write_metrics(step, json.loads(sys.argv[2]))
    Records(f"{sys.argv[1]}/refinements").write(2, "w0", [record("a_0_0", response="half: \\ud83d")])
    if "fails" in sys.argv:
        raise ValueError("what went wrong")
print("after it")
"""


def test_the_bar_says_which_stage_runs_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)

    def run(terminal: int) -> None:
        with open(os.dup(terminal), "w") as file:
            view = View(Console(file=file, width=100), run_dir, None)
            with view.bar:
                for stage, step, num_steps in (
                    ("loading the policy", 0, None),
                    ("the policy answers", 1, 3),
                    ("the refiner rewrites", 1, 3),
                ):
                    run_dir.write_stage(stage, step, num_steps)
                    view.look()
                    view.bar.refresh()
                for step in (1, 2):
                    run_dir.write_metrics(step, NUMBERS)
                    run_dir.write_stage("the policy answers", step + 1, 3)
                    view.look()
                    view.bar.refresh()

    shown = on_terminal(run)
    parts = [line for line in shown.splitlines() if re.match(r" +\d+:\d\d  ", line)]
    assert [line.split("  ")[-1].strip() for line in parts] == ["starting Ray", "loading the policy"]
    assert "loading the policy, 0 s" in shown and "step 1/3: the refiner rewrites, 0 s" in shown
    assert re.search(r"^step  1/3  reward \+0.500 .*  60 s *$", shown, flags=re.MULTILINE)
    assert re.search(r"step 2/3: the policy answers, 0 s .*-:--:--", shown), "one step says nothing of the others"
    assert re.search(r"step 3/3: the policy answers, 0 s .*0:00:0\d", shown)


def shown_without_a_terminal(folder: Path, stages: list[tuple[str, int]]) -> list[str]:
    """Return the lines about a run that enters these stages, each (name, step); its steps end with them."""
    run_dir, output = RunDir(folder), folder / "output"
    with output.open("w") as file:
        view = View(Console(file=file, width=120), run_dir, 3)
        for name, step in stages:
            run_dir.write_stage(name, step, 3)
            view.look()
    return output.read_text().splitlines()


STAGES = [("loading the policy", 0), ("the policy answers", 1), ("the policy answers", 1), ("the refiner rewrites", 1)]


def test_without_a_terminal_a_slow_steps_stages_are_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = shown_without_a_terminal(tmp_path / "quick", STAGES)
    monkeypatch.setattr(console, "QUIET_S", 0.0)
    slow = shown_without_a_terminal(tmp_path / "slow", STAGES)
    start = ["starting Ray", "loading the policy"]
    assert [line.split("  ")[-1] for line in quick] == start
    assert [line.split("  ")[-1] for line in slow] == [
        *start,
        "step 1/3: the policy answers",
        "step 1/3: the refiner rewrites",
    ]


def test_the_first_refinement_is_shown_with_its_step(tmp_path: Path) -> None:
    run_dir, records, output = RunDir(tmp_path), Records(f"{tmp_path}/refinements"), tmp_path / "output"
    with output.open("w") as file:
        view = View(Console(file=file, width=120), run_dir, 3)
        for step, verdict in ((1, "worse"), (2, "accepted"), (3, "accepted")):
            records.write(step, "w0", [record(f"a_{step}_0", verdict=verdict)])
            run_dir.write_metrics(step, NUMBERS)
            view.look()
    text = output.read_text()
    assert re.findall(r"step +(\d)", text) == ["1", "2", "2", "3"]
    assert f"- {TEXTS[0].strip()}" in text and f"+ {TEXTS[1].strip()}" in text


def test_a_resumed_runs_steps_are_shown_again(tmp_path: Path) -> None:
    run_dir, output = RunDir(tmp_path), tmp_path / "output"
    for step in range(1, 11):
        run_dir.write_metrics(step, NUMBERS)
    with output.open("w") as file:
        view = View(Console(file=file, width=120), run_dir, 12)

        def waits(_: float) -> bool:
            """What the run does before each look; true: it ends."""
            number = next(looks)
            if number == 1:
                run_dir.forget_after(5)
            elif number > 1:
                run_dir.write_metrics(number + 4, NUMBERS)
            return number == 4

        looks = iter(range(5))
        _watch(view, SimpleNamespace(wait=waits))  # type: ignore[arg-type]
    lines = output.read_text().splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["6/12", "7/12", "8/12"]
    assert lines[0].endswith("  60 s") and "━" not in output.read_text()


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_nothing_else_writes_where_the_run_is_shown(tmp_path: Path, is_terminal: bool, fails: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS / "helpers")))}
    command = [sys.executable, "-c", NOISY_RUN, str(tmp_path), json.dumps(NUMBERS), *(["fails"] if fails else [])]

    def run(output: int) -> None:
        code = subprocess.run(command, env=environment, stdout=output, stderr=output).returncode
        assert code == int(fails)

    if is_terminal:
        shown = on_terminal(run)
    else:
        with (tmp_path / "output").open("w+") as file:
            run(file.fileno())
            file.seek(0)
            shown = file.read()
    log = (tmp_path / "driver.log").read_text()
    assert "noise" not in shown
    assert set(re.findall(r"noise of (?:the|a) (\w+)", log)) == {"driver", "logger", "warning", "child"}
    assert log.count("noise of a child") == 2
    assert shown.count("starting Ray") >= 1 and "step  1/2" in shown and "step  2/2" in shown
    assert ("ValueError: what went wrong" in shown and "driver.log" in shown) if fails else "after it" in shown
    assert ("next: online-refiner check" in shown) != fails
    assert ("for a browser" in shown) != fails and "could not be written" not in shown
    assert "- half: \\ud83d" in shown or fails
