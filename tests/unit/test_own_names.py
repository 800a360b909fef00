"""A file of the user's that is called as a package of ours: the command runs, or says in one line what to rename."""

import subprocess
import sys
from pathlib import Path

import pytest
from composed_main import composed
from omegaconf import OmegaConf

from recipe.online_refiner.config.checks import load
from recipe.own_names import hidden_in
from recipe.preflight.machine import names_are_not_hidden
from recipe.preflight.rules import PlannedRun

OWN = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"


INSTALLED = Path(sys.executable).with_name("online-refiner")


@pytest.mark.parametrize("name", ["reward.py", "recipe.py", "refiner_worker/__init__.py", "reward/notes.txt"])
@pytest.mark.parametrize("command", [[INSTALLED, "prepare"], [sys.executable, "-m", "recipe.online_refiner.main"]])
def test_commands_beside_a_file_of_that_name(name: str, command: list[str | Path], tmp_path: Path) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(OWN)
    done = subprocess.run([*command, "--help"], cwd=tmp_path, capture_output=True, text=True)
    is_hidden = command[0] != INSTALLED and name in (
        "recipe.py",
        "refiner_worker/__init__.py",
    )  # -m looks here
    assert bool(done.returncode) == is_hidden, done.stderr
    if is_hidden:
        assert done.stderr.count("\n") == 1 and name.partition("/")[0].removesuffix(".py") in done.stderr, done.stderr
        assert name == "recipe.py" or f"{file}" in done.stderr and "rename" in done.stderr


@pytest.mark.parametrize(
    ("name", "reward", "is_hidden"),
    [
        ("recipe", None, True),
        ("refiner_worker", None, True),
        ("reward", "pkg://reward.math", True),
        ("reward", "pkg://reward/math", True),
        ("reward", "reward.py", False),
        ("reward", None, False),
        ("scripts", "pkg://reward.math", False),
    ],
)
@pytest.mark.parametrize("place", ["current folder", "working_dir"])
def test_files_that_rays_workers_would_find_first(
    name: str, reward: str | None, is_hidden: bool, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = composed()
    (tmp_path / f"{name}.py").write_text(OWN)
    if place == "working_dir":
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.working_dir", str(tmp_path), force_add=True)
    else:
        monkeypatch.chdir(tmp_path)
    config.reward.custom_reward_function.path = reward
    found = names_are_not_hidden(PlannedRun(config=config, blocks=load(config)))
    assert (found is not None) == is_hidden
    assert found is None or f"{tmp_path}/{name}.py" in found


def test_another_copy_of_this_project_hides_nothing(tmp_path: Path) -> None:
    for name in ("reward/__init__.py", "recipe/own_names.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert hidden_in([str(tmp_path)], ["recipe", "reward", "refiner_worker"]) is None
    (tmp_path / "reward.py").touch()  # a package goes first
    (tmp_path / "recipe.py").touch()
    assert f"{tmp_path}/recipe.py" in str(hidden_in([str(tmp_path)], ["recipe", "reward"]))
