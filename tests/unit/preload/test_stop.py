"""Ctrl-C and SIGTERM: last words, exit status, and nothing else on the screen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.preload.stop import not_begun

STOPPED = """
import os, signal, sys
from recipe.preload.stop import ends_at_signals, ends_ray_at_signals
def words(name):
    return f"{name}, nothing is lost"
with KIND(words):
    os.kill(os.getpid(), signal.NAME)
    print("it goes on")
"""
OUTCOMES = {"SIGINT": (130, "Ctrl-C, nothing is lost\n"), "SIGTERM": (143, "SIGTERM, nothing is lost\n")}


def run(tmp_path: Path, text: str, *launcher: str, preloads: bool = False) -> subprocess.CompletedProcess:
    (tmp_path / "job.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"}
    environment.pop("RAY_ADDRESS", None)
    environment |= {} if preloads else {"RAY_ADDRESS": "nowhere"}
    command = [sys.executable, *launcher, "job.py"]
    return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("kind", ["ends_at_signals", "ends_ray_at_signals"])
def test_a_program_ends_with_its_last_words(tmp_path: Path, name: str, kind: str) -> None:
    done = run(tmp_path, STOPPED.replace("KIND", kind).replace("NAME", name))
    assert (done.returncode, done.stderr) == OUTCOMES[name] and done.stdout == ""


def test_a_program_that_was_told_to_ignore_ctrl_c_does(tmp_path: Path) -> None:
    text = STOPPED.replace("KIND", "ends_at_signals").replace("NAME", "SIGINT")
    done = run(tmp_path, f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{text}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "it goes on\n", "")


def test_handlers_are_set_for_a_while(tmp_path: Path) -> None:
    text = "import signal\nfrom recipe.preload.stop import ends_at_signals\nwith ends_at_signals():\n    pass\n"
    text += (
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM).name)\n"
    )
    assert run(tmp_path, text).stdout == "True SIG_DFL\n"


@pytest.mark.parametrize("name", OUTCOMES)
def test_packages_that_are_imported_beforehand_may_be_stopped(tmp_path: Path, name: str) -> None:
    (tmp_path / "torch.py").write_text(f"import os, signal\nos.kill(os.getpid(), signal.{name})\n")
    done = run(tmp_path, "print('it began')", "-m", "recipe.preload.launch", preloads=True)
    code, words = OUTCOMES[name]
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"{not_begun(words.partition(',')[0])}\n"


@pytest.mark.parametrize(("last_line", "code"), [("raise SystemExit('why')", 1), ("sys.exit(3)", 3), ("1 / 0", 1)])
def test_bindings_report_no_leaks_after_a_failure(tmp_path: Path, last_line: str, code: int) -> None:
    """What is destroyed with the interpreter would speak after the program's own handlers."""
    text = f"""
import sys
class Binding:
    def __del__(self, write=sys.stderr.write):
        write("leaked")
sys.binding = Binding()
{last_line}
"""
    done = run(tmp_path, text, "-m", "recipe.preload.launch")
    assert done.returncode == code and "leaked" not in done.stderr
    assert ("why" in done.stderr) == ("why" in last_line) and ("ZeroDivision" in done.stderr) == ("/" in last_line)
    assert "leaked" in run(tmp_path, text).stderr
