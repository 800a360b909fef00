"""The command: its help, mistakes, and what it says where packages are missing."""

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from recipe import commands

REPOSITORY = Path(__file__).parents[2]
PRESETS = REPOSITORY / "recipe" / "online_refiner" / "config" / "experiment"
OF_VERL = {"cachetools", "fastapi", "msgspec", "openai", "pyzmq", "uvicorn"}
"""Requirements that only verl's modules import."""
SCREEN = {"lines": 24, "columns": 80}
SOURCES = ["rows", "apps", "dialogue", "gsm8k", "math", "reasoning-gym"]
BEGIN = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from recipe.commands import main; main()"
END = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
{BEGIN}
"""


def run(*arguments: str, program: str = BEGIN, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    environment = {**os.environ, "COLUMNS": str(SCREEN["columns"])}
    command = [sys.executable, *options, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@functools.cache
def help_of(*words: str) -> subprocess.CompletedProcess:
    """Return a command's help; the last line of stderr has the modules that were imported."""
    return run(*words, "--help", program=END)


def test_the_package_installs_one_command() -> None:
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"online-refiner": "recipe.commands:main"}


HEAVY = {"torch", "verl", "vllm", "ray", "transformers"}
"""Packages whose import takes seconds."""
HELP = [[], *([name] for name in commands.COMMANDS), *(["prepare", source] for source in SOURCES)]


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_one_screen_and_imports_no_model_library(words: list[str]) -> None:
    done = help_of(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"usage: {' '.join(['online-refiner', *words])} ")
    assert len(lines) <= SCREEN["lines"] and max(map(len, lines)) <= SCREEN["columns"]
    assert not HEAVY & set(json.loads(done.stderr.splitlines()[-1]))
    assert not words or re.search(rf"^ *Example: online-refiner {' '.join(words)} ", done.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("words", [words for words in HELP if words not in ([], ["train"], ["smoke"])], ids=" ".join)
def test_the_example_of_a_help_has_options_that_are_known(words: list[str], tmp_path: Path) -> None:
    """The command fails at its files, as the folder is empty and there is no network."""
    (example,) = re.findall(r"^Example: online-refiner (.*)$", help_of(*words).stdout, flags=re.MULTILINE)
    with_reward = [] if words[0] not in ("check", "refine") else ["--reward", "no_such:it"]
    done = subprocess.run(
        [sys.executable, "-c", BEGIN, *example.split(), *with_reward],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert "usage:" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0 or done.stderr.splitlines()[-1].startswith("error: "), done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trian", "; did you mean train?"),
        ("check generl --model /nowhere --data none.parquet", "no such file; set one of again, "),
        ("check general --model /nowhere --data none.parquet", "--model /nowhere: no model folder there"),
        ("check general --model m --data none.parquet", "--data none.parquet: No such file or directory"),
        ("check general --model m --data DATA --reward no_such:it", "--reward no_such:it: "),
        ("refine general+temprature=1 --model m --data DATA", "refiner.temprature "),
        ("train refiner.placment=shared", "did you mean refiner.placement?"),
        ("train experiment=gpro", "did you mean grpo?"),
        ("train experiment=grpo platform=cpu", "[needed-keys-are-set]"),
        ("train experiment=grpo platform=cpu constraint.mode=stf", "sft"),
    ],
)
def test_a_mistake_is_answered_before_what_takes_seconds_is_imported(words: str, says: str) -> None:
    data = str(PRESETS.parents[2] / "quickstart" / "train.parquet")
    done = run(*words.replace("DATA", data).split(), program=END)
    *lines, modules = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == "" and len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ") and says in lines[0]
    assert not HEAVY & set(json.loads(modules))


def test_the_first_help_imports_nothing_but_the_standard_library() -> None:
    done = run("--help", program=END, options=("-S",))
    assert all(f"  {name} " in done.stdout for name in commands.COMMANDS)
    assert {name for name in json.loads(done.stderr) if name.startswith("recipe")} == {"recipe", "recipe.commands"}


def test_the_help_of_training_names_each_preset() -> None:
    text = help_of("train").stdout
    for name in [file.stem for file in PRESETS.glob("*.yaml")]:
        base = next((one for one in ("apps_dapo", "apps_ppo", "dialogue_ppo") if name.startswith(one)), name)
        assert re.search(rf"\b{base}\b", text) and name.removeprefix(base) in text, name


def test_training_from_a_program_says_how_to_start_it() -> None:
    done = run("train", "experiment=quickstart", "platform=cpu")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "such as `online-refiner train experiment=quickstart platform=cpu`" in done.stderr


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_command_without_its_packages_says_what_to_install(name: str) -> None:
    """``-S``: without site-packages. Scoring needs none, and others' help."""
    done = run(name, "--help", options=("-S",))
    if name in ("score", "check", "refine", "evaluate"):
        assert done.returncode == 0 and "usage" in done.stdout
    else:
        assert done.returncode == 2
        assert re.fullmatch(r"error: .* has no package (hydra|fsspec|rich|jinja2|plotly): install .*\n", done.stderr)


def test_all_requirements_are_known() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", one)[0].lower() for one in project["dependencies"]}
    modules = {"hydra-core": "hydra", "math-verify": "math_verify", "pyyaml": "yaml", "transferqueue": "transfer_queue"}
    assert {modules.get(name, name) for name in names - OF_VERL} <= commands.REQUIRED


def test_versions_are_one_line() -> None:
    done = run("--version")
    assert re.fullmatch(r"online-refiner [\d.]+, Python 3[\d.]+, verl [\d.]+, .*torch [\d.+a-z]+, .*\n", done.stdout)


def test_a_program_gives_the_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["prepare", "rows", "--help"]) == 0
    assert "--val-fraction" in capfd.readouterr().out
    assert commands.main(["trian"]) == 2
    assert capfd.readouterr().err.startswith("error: trian is not known")


@pytest.mark.parametrize("package", ["verl", "vllm"])
def test_a_package_of_verls_that_is_missing_or_another_is_one_line(package: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"from {package} import no_such_name\n")
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]; "
    own = "from recipe import commands; commands.COMMANDS['mine'] = ('mine', 'main', ''); commands.main()"
    missing = run("mine", program=f"{path}sys.modules[{package!r}] = None; {own}")
    assert missing.returncode == 2 and f"has no package {package}: install" in missing.stderr
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    other = run("mine", program=path + own)
    assert other.returncode == 2 and other.stderr.count("\n") == 1
    assert f"mine.py:1: cannot import name 'no_such_name' from '{package}'" in other.stderr
    assert f"another version of {package} is needed" in other.stderr


def test_a_module_of_the_users_that_is_missing_is_pythons_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("import my_reward\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["online-refiner", "mine"])
    monkeypatch.setitem(commands.COMMANDS, "mine", ("mine", "main", ""))
    with pytest.raises(ModuleNotFoundError, match="my_reward"):
        commands.main()
