"""The docs site builds, and each link of docs/ leads somewhere."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MKDOCS = [
    "uv",
    "run",
    "--quiet",
    "--isolated",
    "--no-project",
    "--with-requirements",
    "requirements/docs.txt",
    "mkdocs",
]


@pytest.mark.e2e
def test_the_site_builds(tmp_path: Path) -> None:
    own_scripts = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))  # where pip puts uv
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{own_scripts}", "NO_MKDOCS_2_WARNING": "1"}
    options = {"cwd": REPOSITORY, "env": environment, "capture_output": True, "text": True}
    if subprocess.run([*MKDOCS, "--version"], **options).returncode:
        pytest.skip("mkdocs could not be installed")
    done = subprocess.run([*MKDOCS, "build", "--strict", "--site-dir", str(tmp_path)], **options)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "constraint" / "index.html").exists()
