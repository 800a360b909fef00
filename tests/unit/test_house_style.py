"""Rules that keep the repository small and its imports one way."""

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("recipe", "refiner_worker", "reward")
SOURCES = sorted(path for name in (*PACKAGES, "scripts", "tests") for path in (REPOSITORY / name).rglob("*.py"))
MAY_IMPORT = {
    "reward": {"reward"},
    "refiner_worker": {"refiner_worker"},
    "recipe": {"recipe", "refiner_worker", "reward"},
}


def imported_packages(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    files = [path for path in SOURCES if path.is_relative_to(REPOSITORY / package)]
    assert files
    for path in files:
        assert imported_packages(path) & set(PACKAGES) <= MAY_IMPORT[package], path


def test_parts_of_the_recipe_folder_stand_alone() -> None:
    for path in SOURCES:
        if path.is_relative_to(REPOSITORY / "recipe" / "cpu_platform"):
            text = path.read_text(encoding="utf-8")
            assert "recipe.online_refiner" not in text and "recipe.mini_apps" not in text, path


@pytest.mark.parametrize(
    "module",
    [
        "reward.apps",
        "reward.math",
        "reward.puzzle",
        "reward.verl_reward",
        "refiner_worker.config",
        "recipe.online_refiner.schema",
        "recipe.report.page",
    ],
)
def test_light_modules_import_neither_torch_nor_verl(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'verl', 'ray', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_files_and_functions_stay_small() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 300, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}: {node.name}"


def test_names_say_what_a_file_holds() -> None:
    assert not [path for path in SOURCES if path.stem in ("utils", "helpers", "common", "misc")]


def test_recipe_and_tests_are_no_packages() -> None:
    # verl's own recipes stand beside ours in `recipe`, and verl's wheel installs a package called `tests`.
    assert not (REPOSITORY / "recipe" / "__init__.py").exists()
    assert not [path for path in SOURCES if path.name == "__init__.py" and "tests" in path.parts]


def test_test_files_have_names_of_their_own() -> None:
    names = sorted(path.name for path in SOURCES if path.name.startswith("test_"))
    assert [name for name, group in itertools.groupby(names) if len(list(group)) > 1] == []
