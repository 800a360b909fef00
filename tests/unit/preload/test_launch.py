"""Starting a command again, with an environment and as a preloaded job."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray._private.runtime_env.context import RuntimeEnvContext
from ray._private.utils import update_envs

from recipe import preload
from recipe.preload import client

SCRIPT = """
import json, os, sys
from recipe.preload import launch
word = sys.argv.pop(1)  # as a command does whose first word says what to do
launch.enter({"GIVEN": "default", "MISSING": "default"}, launcher="recipe.preload.launch")
variables = [os.environ["GIVEN"], os.environ["MISSING"]]
print(json.dumps([[word, *sys.argv[1:]], sys.orig_argv[1:], sys.warnoptions, *variables]))
"""


def run(tmp_path: Path, *arguments: str) -> list[Any]:
    (tmp_path / "job.py").write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parents[3]), str(tmp_path)])
    environment = {**os.environ, "PYTHONPATH": path, "GIVEN": "mine", "RAY_ADDRESS": "nowhere"}
    environment.pop("MISSING", None)
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [*json.loads(done.stdout), done.stderr]


@pytest.mark.parametrize("program", [("job.py",), ("-m", "job")])
def test_a_command_starts_anew_through_the_launcher_once(tmp_path: Path, program: tuple[str, ...]) -> None:
    # RAY_ADDRESS keeps the launcher from preloading; the program runs all the same.
    arguments, command, warnings, given, missing, errors = run(tmp_path, "-W", "ignore", *program, "a", "-m", "b c")
    assert arguments == ["a", "-m", "b c"]
    assert command == ["-W", "ignore", "-m", "recipe.preload.launch", *program, "a", "-m", "b c"]
    assert warnings == ["ignore"]
    assert (given, missing) == ("mine", "default")
    reason = "each worker imports its packages itself: RAY_ADDRESS names a cluster that runs already"
    assert errors.count(reason) == 1


CONTEXT = RuntimeEnvContext(env_vars={"A": "x${NOPE}${B}$B", "C": "d"}, py_executable=str(preload.STAND_IN))


def test_a_worker_is_set_up_as_ray_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"B": "b", "C": "c"})
    options = ["--language=PYTHON", f"{client.CONTEXT}{CONTEXT.serialize()}"]
    assert client.set_up(["/ray/default_worker.py", "--its=own", *options]) == ["/ray/default_worker.py", "--its=own"]
    ours = dict(os.environ)
    monkeypatch.setattr(os, "environ", {"B": "b", "C": "c"})
    update_envs(CONTEXT.env_vars)
    assert ours == os.environ == {"A": "xbb", "B": "b", "C": "d"}


@pytest.mark.parametrize(
    "other", [{"command_prefix": ["nice"]}, {"py_executable": "/usr/bin/python3"}, {"override_worker_entrypoint": "/a"}]
)
def test_a_worker_with_another_way_to_start_is_rays(other: dict[str, Any]) -> None:
    context = RuntimeEnvContext(**{"py_executable": str(preload.STAND_IN), **other})
    arguments = ["/ray/default_worker.py", "--language=PYTHON", f"{client.CONTEXT}{context.serialize()}"]
    assert client.set_up(arguments) == ["/ray/setup_worker.py", *arguments]


@pytest.mark.parametrize(("last_line", "code"), [("", 0), ("sys.exit(0)", 0), ("sys.exit(5)", 5), ("1 / 0", 1)])
def test_a_program_ends_as_it_does_without_the_launcher(tmp_path: Path, last_line: str, code: int) -> None:
    (tmp_path / "job.py").write_text(
        "import atexit, sys, threading, time\n"
        "def late():\n    time.sleep(0.5)\n    print('thread', end=' ')\n"
        "threading.Thread(target=late).start()\n"
        f"atexit.register(print, 'handler', end='')\n{last_line}\n"
    )
    environment = {**os.environ, "RAY_ADDRESS": "nowhere"}
    found = [
        subprocess.run(
            [sys.executable, *launcher, "job.py"], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        for launcher in ((), ("-m", "recipe.preload.launch"))
    ]
    assert [done.returncode for done in found] == [code, code]
    assert [done.stdout for done in found] == ["thread handler"] * 2
    assert ("ZeroDivisionError" in found[1].stderr) == (code == 1)


def test_a_command_that_another_program_calls_is_told_to_be_one(tmp_path: Path) -> None:
    """Its own arguments are not those of the interpreter, as in a notebook, so it cannot be started again."""
    code = "import sys; sys.argv = ['online-refiner', 'train', 'a=1']; from recipe.preload import launch; "
    code += "launch.enter({'NOT_SET_HERE': '1'})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ") and "`online-refiner train a=1`" in done.stderr
