"""The installed commands where packages are missing."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from recipe import commands

REPOSITORY = Path(__file__).parents[2]
COMMANDS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
OF_VERL = {"cachetools", "fastapi", "msgspec", "openai", "pyzmq", "uvicorn"}
"""Requirements that only verl's modules import."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_packages_says_what_to_install(command: str) -> None:
    """``-S``: without site-packages. Scoring needs none."""
    module, _, function = COMMANDS[command].partition(":")
    program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from {module} import {function} as run; run()"
    done = subprocess.run([sys.executable, "-S", "-c", program, "--help"], capture_output=True, text=True)
    if command == "online-refiner-score":
        assert done.returncode == 0 and "usage" in done.stdout
    else:
        assert done.returncode == 2 and re.fullmatch(
            r"error: .* has no package (hydra|fsspec): install .*\n", done.stderr
        )


def test_all_requirements_are_known() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", one)[0].lower() for one in project["dependencies"]}
    modules = {"hydra-core": "hydra", "math-verify": "math_verify", "pyyaml": "yaml", "transferqueue": "transfer_queue"}
    assert {modules.get(name, name) for name in names - OF_VERL} <= commands.FOREIGN


def test_a_module_of_the_users_that_is_missing_is_pythons_to_report() -> None:
    with pytest.raises(ModuleNotFoundError, match="my_reward"):
        commands._run("my_reward")
