"""The lock files against the package index: asks for some 300 packages, downloads none."""

import os
import shutil
import site
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PATH = os.pathsep.join([os.environ["PATH"], f"{site.USER_BASE}/bin"])


@pytest.mark.e2e
@pytest.mark.slow
def test_pins_are_current_and_have_wheels() -> None:
    assert shutil.which("uv", path=PATH), "scripts/setup.sh installs it"
    check = ["bash", "scripts/lock.sh", "--check"]
    done = subprocess.run(check, cwd=REPOSITORY, env={**os.environ, "PATH": PATH}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
