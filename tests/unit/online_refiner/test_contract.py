"""The table of verl's names: all of them are there and used, no override is left out, and a start without one ends."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from omegaconf import DictConfig

from recipe.online_refiner.main import prepare
from recipe.online_refiner.verl_glue import contract
from recipe.online_refiner.verl_glue.contract import HOOKS, Hook

REPOSITORY = Path(__file__).parents[3]
PARTS = ("recipe/online_refiner", "recipe/runs", "recipe/preflight", "refiner_worker")
"""What a run uses on every platform."""
ALSO = ("recipe/without_flash_attn.py", "recipe/cpu_platform/patches.py")
"""The same without classes of ours on verl's; importing the first changes verl."""
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for part in (*PARTS, *ALSO)
    for path in (sorted((REPOSITORY / part).rglob("*.py")) or [REPOSITORY / part])
}
CALLABLE = [hook for hook in HOOKS if hook.parameters is not None]


def file_of(hook: Hook, places: dict[str, Path]) -> Path:
    package, *parts = hook.module.split(".")
    return places[package].joinpath(*parts).with_suffix(".py")


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders with copies of all that the check reads."""
    installed = contract.folders()
    places = {package: tmp_path_factory.mktemp("copy") / package for package in installed}
    for hook in HOOKS:
        file = file_of(hook, places)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file_of(hook, installed).read_text())
    for place in places.values():
        (place / "version").mkdir()
        (place / "version" / "version").write_text("0.10.0\n")
    contract.check(places)
    return places


@pytest.fixture
def broken(copies: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[dict[str, Path]]:
    """Yield the copies, of which a test may change the file of its hook."""
    file = file_of(request.getfixturevalue("hook"), copies)
    source = file.read_text()
    yield copies
    file.write_text(source)


def test_the_installed_verl_has_all_of_it() -> None:
    contract.check()


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.path)
def test_a_renamed_hook_is_refused(hook: Hook, broken: dict[str, Path]) -> None:
    file, name = file_of(hook, broken), hook.name.rpartition(".")[2]
    defined = rf"(?m)(\b(?:def |class |self\.)|^ {{0,4}}){name}\b"  # not where a parameter has the same name
    file.write_text(re.sub(defined, rf"\1{name}_renamed", file.read_text()))
    with pytest.raises(ValueError, match=f"{name} does not exist") as error:
        contract.check(broken)
    package = hook.module.partition(".")[0]
    line = str(error.value)
    assert line.startswith(f"{package} 0.10.0 is not what this extension is written for: {hook.module}:")
    assert "\n" not in line and line.endswith(f"pip install {contract.REQUIREMENTS[package]}")
    assert any(one.path in line and f"{one.needed_by} needs it" in line for one in HOOKS)


@pytest.mark.parametrize("hook", CALLABLE, ids=lambda hook: hook.path)
def test_another_signature_is_refused(hook: Hook, broken: dict[str, Path]) -> None:
    file, name = file_of(hook, broken), hook.name.rpartition(".")[2]
    file.write_text(re.sub(rf"\bdef {name}\(", f"def {name}(other, ", file.read_text()))
    with pytest.raises(
        ValueError, match=rf"{re.escape(hook.path)} takes \(.*\), not .*, and {hook.needed_by} needs it"
    ):
        contract.check(broken)


def verl_bases(module: ModuleType) -> Iterator[tuple[str, Any, str]]:
    """Yield what classes of a module override of verl's: the path of verl's, what stands in its place, and the module.

    Dunder methods aside; Ray's wrapper around the class of an actor is left out.
    """
    for cls in vars(module).values():
        if not inspect.isclass(cls) or cls.__module__ != module.__name__:
            continue
        for name, value in vars(cls).items():
            for base in cls.__mro__[1:]:
                is_verls = base.__module__.startswith("verl.") and "<locals>" not in base.__qualname__
                if is_verls and name in vars(base) and not name.startswith("__") and name != "_abc_impl":
                    yield f"{base.__module__}:{base.__qualname__}.{name}", value, module.__name__
                    break


def test_every_override_is_in_the_table_and_takes_what_verl_passes() -> None:
    names = [name for name, path in MODULES.items() if str(path.relative_to(REPOSITORY)) not in ALSO]
    modules = map(importlib.import_module, names)
    overrides = [found for module in modules for found in verl_bases(module)]
    assert len(overrides) >= 25
    known = {hook.path: hook for hook in HOOKS}
    for path, override, module in overrides:
        assert path in known, f"{module} overrides {path}: add it to recipe/online_refiner/verl_glue/contract.py"
        hook = known[path]
        assert hook.needed_by == module
        if not inspect.isfunction(override):
            continue
        own = list(inspect.signature(override).parameters.values())[1:]
        own = [one for one in own if one.name != "_ray_trace_ctx"]  # which Ray adds
        named = [one.name for one in own if one.kind is not one.VAR_KEYWORD]
        assert hook.parameters is not None and list(hook.parameters[: len(named)]) == named, path
        assert len(named) < len(own) or len(named) == len(hook.parameters), f"{path}: our override lacks some"


def names_used(path: Path) -> set[str]:
    """Return the names that a module uses or defines, and its texts, for ``getattr``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.path)
def test_who_is_named_uses_it(hook: Hook) -> None:
    assert hook.name.rpartition(".")[2] in names_used(MODULES[hook.needed_by])


def private_names(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the private names of a module, each with whether the module defines it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, True
        elif isinstance(node, ast.Attribute):
            yield node.attr, isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, False) for alias in node.names)


def test_every_private_name_that_is_not_ours_is_in_the_table() -> None:
    """The CPU platform aside, which checks versions."""
    paths = {module: path for module, path in MODULES.items() if module != "recipe.cpu_platform.patches"}
    found = [(name, module, own) for module, path in paths.items() for name, own in private_names(path)]
    ours = {name for name, _, own in found if own}
    known = {hook.name.rpartition(".")[2] for hook in HOOKS}
    others = {(name, module) for name, module, _ in found if re.match("_[^_]", name)}
    assert {(name, module) for name, module in others if name not in ours | known} == set()
    assert ("_dispatch_info", "recipe.online_refiner.verl_glue.stages") in others


def test_what_to_install_is_what_the_project_asks_for() -> None:
    asked = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    assert contract.REQUIREMENTS["verl"] in asked
    assert contract.REQUIREMENTS["transfer_queue"].replace("==", ">=") in asked


def overlay(folder: Path, relative: str, source: str) -> None:
    """Write a package's file into a folder, with links to all others of the package beside it."""
    package, *parts = relative.split("/")
    stock = contract.folders()[package]
    place = folder / package
    for part in parts:
        place.mkdir()
        for one in stock.iterdir():
            if one.name != part:
                (place / one.name).symlink_to(one)
        place, stock = place / part, stock / part
    place.write_text(source)


@pytest.mark.parametrize("what", ["renamed", "missing"])
def test_the_start_ends_in_one_line(what: str, tmp_path: Path) -> None:
    """Before Hydra composes verl's config, on any platform."""
    begin = "import sys; sys.argv = ['main', 'platform=gpu', 'dry_run=true']; "
    expected = "verl is not installed; run: pip install verl==0.9.1"
    if what == "missing":
        begin += "sys.modules['verl'] = None; "
    else:
        stock = contract.folders()["verl"] / "trainer/ppo/v1/trainer_base.py"
        overlay(
            tmp_path, "verl/trainer/ppo/v1/trainer_base.py", stock.read_text().replace("_balance_batch", "_balance")
        )
        begin += f"sys.path.insert(0, {str(tmp_path)!r}); "
        expected = (
            "verl 0.9.1 is not what this extension is written for: verl.trainer.ppo.v1.trainer_base:PPOTrainer."
            "_balance_batch does not exist, and recipe.online_refiner.verl_glue.trainer needs it; run: pip install "
            "verl==0.9.1"
        )
    code = begin + "from recipe.online_refiner.main import command; command()"
    environment = {name: value for name, value in os.environ.items() if name != "VERL_CONFIG"}  # as in a user's shell
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {expected}\n")


def test_a_script_of_ones_own_is_refused_too(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contract.REQUIREMENTS, "no_such_package", "no-such==1")
    with pytest.raises(ValueError, match="no_such_package is not installed; run: pip install no-such==1"):
        prepare(config)


def test_verls_log_has_the_lines_that_tell_its_set_up() -> None:
    """``task_runner.SetUp`` reads them."""
    (file,) = {file_of(hook, contract.folders()) for hook in HOOKS if hook.module.endswith("v1.trainer_base")}
    module = ast.parse((REPOSITORY / "recipe/online_refiner/verl_glue/task_runner.py").read_text())
    assigned = [node for node in ast.walk(module) if isinstance(node, ast.Assign)]
    (stages,) = [ast.literal_eval(one.value) for one in assigned if ast.unparse(one.targets[0]) == "STAGES"]
    assert stages and all(f'logger.info("{line}")' in file.read_text() for line in stages)
