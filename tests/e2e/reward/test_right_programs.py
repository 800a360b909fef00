"""Right programs do in the sandbox what they do in a bare interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest
from right_programs import RIGHT_PROGRAMS

from reward.limits import Limits
from reward.sandbox import Program, Sandbox
from reward.sandbox.slot_process import memory_file

pytestmark = pytest.mark.e2e


def run_bare(code: str, stdin: str, folder: Path) -> bytes:
    """Return the standard output of a separate interpreter, whose input is the same kind of file."""
    options = ["-I"] if "numpy" in code else ["-I", "-S"]
    with open(memory_file(stdin.encode()), "rb") as file:
        command = [sys.executable, *options, "-X", "utf8", "-c", code]
        done = subprocess.run(command, stdin=file, capture_output=True, cwd=folder, env={})
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@pytest.mark.parametrize("name", RIGHT_PROGRAMS)
def test_right_program(sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    code, stdin = RIGHT_PROGRAMS[name]
    execution = sandbox.execute(Program(code=code, stdin=stdin), limits=Limits(), timeout_s=30.0)
    assert execution.status == "ok", execution.detail
    expected = run_bare(code, stdin, tmp_path)
    assert expected
    assert execution.stdout.encode() == expected
