"""The modules that programs find loaded, and a way to the others where their folder is closed to the sandbox's user."""

import contextlib
import importlib
import importlib.machinery
import os
import sys
import warnings
from collections.abc import Sequence
from types import CodeType, ModuleType


def preload(modules: list[str], standard: str, extra: str | None, *, all_extensions: bool) -> list[str]:
    """Import what programs will want; returns the folders that they need to read for the rest.

    Args:
        modules: names to import.
        standard: folder of the standard library.
        extra: folder with one more package, that of the last module; None: the standard library only.
        all_extensions: load every extension module if the folder is closed to other users, as programs then cannot.
    """
    folders = [standard]
    if extra is not None:
        sys.path.append(extra)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules
        for name in modules:
            importlib.import_module(name)
        if not _is_open_to_all(standard):
            if all_extensions:
                _load_extensions(os.path.join(standard, "lib-dynload"))
            sys.meta_path.append(FolderFinder(standard, None))
    if extra is not None:
        sys.path.remove(extra)
        package = modules[-1].partition(".")[0]
        folders += [os.path.join(extra, package), os.path.join(extra, f"{package}.libs")]
        if not _is_open_to_all(extra):
            sys.meta_path.append(FolderFinder(extra, package))
    sys.path[:] = [path for path in sys.path if path.startswith(standard)]
    sys.dont_write_bytecode = True
    return folders


def _load_extensions(folder: str) -> None:
    """Load every extension module: no descriptor of a folder helps the dynamic loader."""
    importlib.import_module("asyncio")  # before its extension module, which is else half loaded when it looks for that
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in sorted(os.listdir(folder)):
        if name.endswith(suffix) and not name.startswith(("_test", "_xx", "xx", "_tkinter", "_curses", "readline")):
            with contextlib.suppress(ImportError):  # built without what it needs
                importlib.import_module(name.removesuffix(suffix))


def _is_open_to_all(folder: str) -> bool:
    """Whether every user may pass through the folder and all above it."""
    while os.stat(folder).st_mode & 0o001:
        if folder == "/":
            return True
        folder = os.path.dirname(folder)
    return False


class FolderFinder:
    """Imports Python modules through an open descriptor of their folder.

    A process whose user may not pass the folders above (an interpreter under /root) can still open files below it.
    """

    def __init__(self, folder: str, only: str | None) -> None:
        """Open the folder; `only` is the one top-level package to import from it, None: any."""
        self.folder = folder
        self.only = only
        self.fd = self._open()

    def reopen(self) -> None:
        """Open the folder as it looks in this process's mount namespace, under the number that loaders know."""
        fd = self._open()
        os.dup2(fd, self.fd, inheritable=False)
        os.close(fd)

    def _open(self) -> int:
        return os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module's source, or nothing."""
        if self.only not in (None, fullname.partition(".")[0]):
            return None
        base = fullname.replace(".", "/")
        for file, is_package in ((f"{base}/__init__.py", True), (f"{base}.py", False)):
            with contextlib.suppress(OSError):
                os.stat(file, dir_fd=self.fd)
                origin = os.path.join(self.folder, file)
                spec = importlib.machinery.ModuleSpec(fullname, None, origin=origin, is_package=is_package)
                spec.loader = _SourceLoader(self.fd, file, origin)  # type: ignore[assignment]
                spec.has_location = True
                if spec.submodule_search_locations is not None:
                    spec.submodule_search_locations.append(os.path.join(self.folder, base))
                return spec
        return None


def folder_fds() -> list[int]:
    """Descriptors of the finders in use."""
    return [finder.fd for finder in sys.meta_path if isinstance(finder, FolderFinder)]


def reopen_folders() -> None:
    """Let the finders in use see what is mounted over their folders."""
    for finder in sys.meta_path:
        if isinstance(finder, FolderFinder):
            finder.reopen()


class _SourceLoader:
    """Compiles a module's source; no base class, as `importlib.abc` would load much more than programs use."""

    def __init__(self, fd: int, file: str, origin: str) -> None:
        self._fd, self._file, self._origin = fd, file, origin

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, fullname: str) -> CodeType:
        with open(os.open(self._file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd), "rb") as file:
            return compile(file.read(), self._origin, "exec", dont_inherit=True)
