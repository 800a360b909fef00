"""A check that no module of the user hides one of this project's top-level packages, as a file `reward.py` would.

Python looks into the current folder first for ``python -m``, and Ray's workers do so in any case.
"""

from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def refuse_hidden(package: str, *names: str) -> None:
    """Raise ImportError, which ``python -m`` shows as one line, if an import by one of the names is not ours."""
    for name in names:
        spec = find_spec(name)
        if spec is not None and spec.origin is not None and not _is_ours(name, spec.origin):
            raise ImportError(_advice(name, spec.origin), name=package)


def hidden_in(folders: Iterable[str], names: Iterable[str]) -> str | None:
    """Return one line if a module in one of the folders would hide a package of ours."""
    for folder in folders:
        for name in names:
            spec = PathFinder.find_spec(name, [folder])  # a folder without modules has no origin, and hides nothing
            if spec is not None and spec.origin is not None and not _is_ours(name, spec.origin):
                return _advice(name, spec.origin)
    return None


def _is_ours(name: str, origin: str) -> bool:
    """Return whether `origin` is the package beside this module, or in another copy of the project (a checkout)."""
    folder = Path(origin).resolve().parent
    return folder == ROOT / name or (folder.name == name and (folder.parent / "recipe" / "own_names.py").is_file())


def _advice(name: str, origin: str) -> str:
    return f"{origin} hides this project's package {name}: rename it, or run in another folder"
