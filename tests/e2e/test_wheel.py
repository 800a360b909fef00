"""The wheel alone, installed beside the packages that it needs, outside of the repository: its commands run."""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of what is committed or new, install it, and return the folder of its commands."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((REPOSITORY / name).read_bytes())
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=folder / "source", check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    own = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    # A folder that a .pth file names is searched, but its own .pth files, such as an editable install's, are not read.
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def run(command: Path, *arguments: str, cwd: Path, status: int = 0) -> str:
    done = subprocess.run(
        [command, *arguments], cwd=cwd, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done.stdout if status == 0 else done.stderr


@pytest.mark.e2e
@pytest.mark.slow
def test_commands_of_the_wheel(commands: Path, tmp_path: Path, tiny_llama: Path, letters_task: list[str]) -> None:
    where = "import recipe.online_refiner as package; print(package.__file__, package.__version__)"
    file, version = run(commands / "python", "-c", where, cwd=tmp_path).split()
    assert Path(file).is_relative_to(commands.parent) and version in str(*commands.parents[1].glob("*.whl"))

    assert not list(Path(file).parents[2].glob("experiments*")), "they stand beside the product"

    data = ("apps", str(REPOSITORY / "examples" / "own_tests" / "problems.jsonl"), "--output", "data")
    run(commands / "online-refiner", "prepare", *data, cwd=tmp_path)
    solutions = ("--problems", "data/problems.jsonl", "--solutions", "data/solutions.jsonl")
    scores = run(commands / "online-refiner", "score", *solutions, cwd=tmp_path).splitlines()
    assert len(scores) > 4 and all(json.loads(line)["score"] == 1.0 for line in scores)

    missing = run(commands / "online-refiner", "evaluate", "--model", str(tiny_llama), cwd=tmp_path, status=2)
    assert "evalplus" in missing and missing.count("\n") == 1

    job = ("platform=cpu", *letters_task, f"actor_rollout_ref.model.path={tiny_llama}", "trainer.n_gpus_per_node=1")
    with_rows = ("experiment=quickstart", f"actor_rollout_ref.model.path={tiny_llama}", "dry_run=true")
    with_rows += ("data.filter_overlong_prompts=false",)  # the tiny model has a token for each letter
    assert "run directory" in run(commands / "online-refiner", "train", *with_rows, cwd=tmp_path), "its own rows"
    plan = run(commands / "online-refiner", "train", *job, "dry_run=true", cwd=tmp_path)
    assert "refiner" in plan and "template general+feedback" in plan
    assert "refiner.n does not exist" in run(
        commands / "online-refiner", "train", "refiner.n=4", cwd=tmp_path, status=2
    )
