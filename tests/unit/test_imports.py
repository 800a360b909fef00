"""Imports go one way, without a circle, and what needs neither torch nor verl does not import them."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ALONE = {
    "reward": "reward",
    "refiner_worker": "refiner_worker",
    "recipe/sizing": "refiner_worker",  # which knows engines
    "recipe/online_refiner/method": "refiner_worker",  # the method is read without config and verl
    "recipe/cpu_platform": "recipe.preload",
    "recipe/preload": "recipe.preload",
}
"""Parts that may be used without the rest, and what they may import beside themselves."""


def modules(folder: str) -> dict[str, Path]:
    """Return the files below a folder by the name of their module."""
    paths = sorted((REPOSITORY / folder).rglob("*.py"))
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


PRODUCT = {**modules("recipe"), **modules("refiner_worker"), **modules("reward")}
OURS = {**PRODUCT, **modules("experiments")}


def imported(path: Path, *, at_import: bool) -> set[str]:
    """Return the modules of ours that a file names, anywhere or when it is imported itself."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if at_import else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in OURS else node.module for name in names}
    return found & OURS.keys()


def test_modules_import_each_other_in_no_circle() -> None:
    graph = {name: imported(path, at_import=True) - {name} for name, path in OURS.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(OURS)


AGAINST = {("recipe.online_refiner", "recipe.report")}
"""The one arrow against the others: the command of a run shows the run on the terminal, and writes its page."""


def room(name: str) -> str:
    """Return the folder of the first floor in ``recipe`` that a module is in, or the package, or the module itself."""
    top, *rest = name.split(".")
    return f"recipe.{rest[0]}" if top == "recipe" and rest else top


def test_rooms_need_each_other_in_no_circle() -> None:
    """Anywhere in a file, for types too: who draws an arrow against the others has put something into a wrong room."""
    graph: dict[str, set[str]] = {}
    for name, path in PRODUCT.items():
        graph.setdefault(room(name), set()).update(map(room, imported(path, at_import=False)))
    for one, other in AGAINST:
        graph[one].remove(other)
    order = TopologicalSorter({name: others - {name} for name, others in graph.items()}).static_order()
    assert {"recipe.online_refiner", "recipe.preflight", "recipe.runs", "reward"} <= set(order)


def test_the_product_needs_no_experiment() -> None:
    scripts = {file.name: file for file in (REPOSITORY / "scripts").glob("*.py")}
    for name, path in {**PRODUCT, **scripts}.items():
        assert imported(path, at_import=False) <= PRODUCT.keys(), name


@pytest.mark.parametrize("part", ALONE)
def test_parts_stand_alone(part: str) -> None:
    allowed = (part.replace("/", "."), ALONE[part])
    for name, path in modules(part).items():
        others = {one for one in imported(path, at_import=False) if not one.startswith(allowed)}
        assert not others, f"{name}: {others}"


def test_the_method_imports_no_verl() -> None:
    for name, path in modules("recipe/online_refiner/method").items():
        imports = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        named = {alias.name for node in imports for alias in node.names if isinstance(node, ast.Import)}
        named |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
        assert not [one for one in named if one.split(".")[0] == "verl"], name


def test_files_of_the_method_need_each_other_in_no_circle() -> None:
    """Anywhere in a file, for types too."""
    files = modules("recipe/online_refiner/method")
    graph = {name: imported(path, at_import=False) & files.keys() - {name} for name, path in files.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(files)


LIGHT = ("reward.apps", "reward.math", "reward.verl_reward", "refiner_worker.config")
LIGHT += (
    "recipe.online_refiner.config.checks",
    "recipe.report.page",
    "recipe.sizing.moments",
    "recipe.cpu_platform",
)


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_import_neither_torch_nor_verl(module: str) -> None:
    code = f"import sys, {module}; print(*{{'torch', 'verl', 'ray', 'transformers'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def verls(path: Path) -> set[str]:
    """Return the modules of verl that a file imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name for name in names if name.partition(".")[0] == "verl"}


OF_VERL = ("recipe.online_refiner.verl_glue", "recipe.cpu_platform")
"""The packages that import verl: the training glue, and what lets verl run on CPUs."""


def test_verl_is_imported_in_the_glue_alone() -> None:
    found = {name: verls(path) for name, path in PRODUCT.items() if not name.startswith(OF_VERL)}
    assert {name: names for name, names in found.items() if names} == {}
    assert any(verls(path) for name, path in PRODUCT.items() if name.startswith(OF_VERL[0]))


NEVER = {
    "recipe/online_refiner/refine": (
        "recipe.online_refiner.config",
        "recipe.online_refiner.plan",
        "recipe.online_refiner.verl_glue",
    ),
}
"""What the modules of a folder import nowhere, not even for types, and neither does anything that they import."""


def reached(name: str) -> set[str]:
    """Return the modules of the product that a module imports, anywhere in its file, and those that these import."""
    found, new = set[str](), {name}
    while new:
        found |= new
        new = set().union(*(imported(PRODUCT[one], at_import=False) for one in new)) - found
    return found - {name}


@pytest.mark.parametrize("folder", NEVER)
def test_parts_import_only_what_is_below_them(folder: str) -> None:
    for name, path in modules(folder).items():
        others = {one for one in imported(path, at_import=False) if one.startswith(NEVER[folder])}
        assert not others, f"{name}: {others}"
        assert not any(name in reached(one) for one in imported(path, at_import=False)), f"{name} is in a circle"
