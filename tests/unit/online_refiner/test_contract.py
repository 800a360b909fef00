"""The table of verl's names: all are there and used, no override is left out; a start with another verl ends."""

import ast
import dataclasses
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
from packaging.requirements import Requirement

from recipe.online_refiner import main
from recipe.online_refiner.main import WRITTEN_FOR, prepare
from recipe.online_refiner.verl_glue import contract
from recipe.online_refiner.verl_glue.contract import HOOKS, Hook, fault_of, file_of, names_in
from recipe.online_refiner.verl_glue.task_runner import ACTOR_IS_THERE

REPOSITORY = Path(__file__).parents[3]
PARTS = ("recipe/online_refiner", "recipe/runs", "recipe/preflight", "refiner_worker")
"""What a run uses on every platform."""
ALSO = ("recipe/online_refiner/verl_glue/without_flash_attn.py", "recipe/cpu_platform/patches.py")
"""The same without classes of ours on verl's; importing the first changes verl."""
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for part in (*PARTS, *ALSO)
    for path in (sorted((REPOSITORY / part).rglob("*.py")) or [REPOSITORY / part])
}


def test_names_of_a_module_are_found() -> None:
    source = "class A:\n b = 1\n async def f(self, x, *, y=1, **z):\n  self.c = x\ndef g(): pass\nd: int = 2"
    found = {"A": None, "A.b": None, "A.c": None, "A.f": ("x", "y", "z"), "g": (), "d": None}
    assert names_in(source) == found


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.path)
def test_the_installed_verl_has_each_name(hook: Hook) -> None:
    assert fault_of(hook) is None, f"{hook.needed_by} needs it"


def verl_bases(module: ModuleType) -> Iterator[tuple[str, Any, str]]:
    """Yield verl's members that classes of a module override: verl's path, the replacement, and the module.

    Dunder methods and Ray's wrapper around the class of an actor are left out.
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
    assert ("_dispatch_info", "recipe.online_refiner.verl_glue.rows") in others


def test_what_to_install_is_what_the_project_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {*WRITTEN_FOR} <= {*project["dependencies"], *project["optional-dependencies"]["verl"]}
    assert {Requirement(line).name.lower() for line in WRITTEN_FOR} == {
        hook.module.partition(".")[0].replace("_", "") for hook in HOOKS
    }


@pytest.mark.parametrize("found", [None, "0.10.0"])
def test_the_start_ends_in_one_line(found: str | None, tmp_path: Path) -> None:
    """Before Hydra composes verl's config, on any platform; a folder before pip's counts, as it is imported."""
    begin = "import sys; sys.argv = ['main', 'platform=gpu', 'dry_run=true']; "
    if found is None:
        begin += "import importlib.metadata as known; known.Distribution.discover = lambda **_: iter(()); "
        begin += "sys.modules['verl'] = None; "
        expected = "verl is not installed; run: pip install 'verl==0.9.1'"
    else:
        place = tmp_path / "verl" / "version" / "version"
        place.parent.mkdir(parents=True)
        place.write_text(f"{found}\n")
        (tmp_path / "verl" / "__init__.py").write_text("raise ImportError('it is only looked at')")
        begin += f"sys.path.insert(0, {str(tmp_path)!r}); "
        of_verl = [hook for hook in HOOKS if hook.module.startswith("verl.")]
        expected = f"verl 0.10.0: there is no module {of_verl[0].module}, which {of_verl[0].needed_by} needs "
        expected += f"({len(of_verl)} of {len(HOOKS)} names differ); "
        expected += "run: pip install 'verl==0.9.1' 'TransferQueue>=0.1.11'"
    code = begin + "from recipe.online_refiner.main import command; command()"
    environment = {name: value for name, value in os.environ.items() if name != "VERL_CONFIG"}  # as in a user's shell
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {expected}\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no-such==1", "no-such is not installed; run: pip install 'no-such==1'"),
        ("pytest<3", "pytest .* is not what this .*; run: pip install 'pytest<3'"),
    ],
)
def test_a_script_of_ones_own_is_refused_too(
    config: DictConfig, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.setattr(main, "WRITTEN_FOR", (*WRITTEN_FOR, line))
    with pytest.raises(ValueError, match=said):
        prepare(config)


def test_verls_log_has_the_line_that_tells_its_set_up() -> None:
    (file,) = {file_of(hook) for hook in HOOKS if hook.module.endswith("v1.trainer_base")}
    assert f'logger.info("{ACTOR_IS_THERE}")' in file.read_text()


def copied_verl(folder: Path, version: str, hook: Hook | None = None, renamed: str = "") -> Path:
    """Return a folder with the sources of verl that the table names, as another version, a hook's name replaced."""
    for one in HOOKS:
        place = folder.joinpath(*one.module.split(".")).with_suffix(".py")
        if one.module.startswith("verl.") and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(file_of(one).read_text())
    if hook is not None:
        place = folder.joinpath(*hook.module.split(".")).with_suffix(".py")
        place.write_text(re.sub(rf"\b{hook.name.rpartition('.')[2]}\b", renamed, place.read_text()))
    (folder / "verl" / "version").mkdir()
    (folder / "verl" / "version" / "version").write_text(version)
    (folder / "verl" / "__init__.py").touch()
    return folder


ASKED = "from recipe.online_refiner.main import check_packages; check_packages()"


@pytest.mark.parametrize("version", ["0.9.1", "0.10.0"])
@pytest.mark.parametrize("hook", [None, *HOOKS[:1]])
def test_names_decide_and_not_the_version(version: str, hook: Hook | None, tmp_path: Path) -> None:
    folder = copied_verl(tmp_path, version, hook, renamed="_renamed")
    begin = f"import sys; sys.path.insert(0, {str(folder)!r}); "
    done = subprocess.run([sys.executable, "-c", begin + ASKED], cwd=REPOSITORY, capture_output=True, text=True)
    if hook is None:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        said = f"verl {version}: {hook.module} has no {hook.name}, which {hook.needed_by} needs; run: pip install "
        assert done.stderr.splitlines()[-1].startswith(f"ValueError: {said}")


@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook.since], ids=lambda hook: hook.path)
@pytest.mark.parametrize(("version", "is_there"), [("0.9.0", True), ("0.9.1", False), ("0.9.2.dev0", False)])
def test_a_name_is_wanted_of_versions_that_have_it(
    hook: Hook, version: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "version_of", lambda package: version if package == "verl" else None)
    renamed = dataclasses.replace(hook, path=f"{hook.path}_renamed")
    assert (fault_of(renamed) is None) is is_there


def test_other_parameters_are_another_name() -> None:
    hook = next(hook for hook in HOOKS if hook.parameters)
    assert fault_of(dataclasses.replace(hook, parameters=("other",))) == (
        f"{hook.path} takes ({', '.join(hook.parameters or ())}) instead of (other)"
    )


def test_a_version_that_was_not_tried_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contract.caution_of_version() is None
    monkeypatch.setattr(contract, "TRIED", ("0.8.9",))
    assert "was not tried with this extension" in (contract.caution_of_version() or "")
