"""The modules that are loaded before a program starts, and the folders from which it imports others."""

import contextlib
import ctypes
import importlib
import os
import site
import sys
import threading
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

# Extension modules that need the system's libraries, which a program could not load.
_NEEDING_LIBRARIES = ("zlib", "_bz2", "_lzma", "_hashlib", "_ssl", "_sqlite3")


def load(modules: list[str], standard: str, package: str | None) -> list[int]:
    """Import the modules that programs often use; return the descriptors of the folders that hold the rest.

    Programs import by way of an open descriptor of each folder, since their user may not be able to pass the folders
    above it (an interpreter under /root).

    Args:
        modules: names to import.
        standard: folder of the standard library.
        package: folder of a package that is installed beside it; its parent is no place to import from.
    """
    folder = f"{standard}/lib-dynload"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    needing = [f"{folder}/{name}" for name in names if name.startswith(_NEEDING_LIBRARIES)]
    for library in ("libgcc_s.so.1", *needing):  # the former glibc loads when a thread ends early
        with contextlib.suppress(OSError):
            ctypes.CDLL(library)
    _add_locks()
    fds = [_open_at(standard)]
    folder = f"/proc/self/fd/{fds[0]}"
    _move_packages(standard, folder)
    sys.path[:] = [folder, f"{folder}/lib-dynload"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated modules
        if package is not None:
            sys.path.append(os.path.dirname(package))
        for name in modules:
            importlib.import_module(name)
    if package is not None:
        sys.path.pop()
        fds.append(_open_at(package))
        _move_packages(package, f"/proc/self/fd/{fds[1]}")
    sys.dont_write_bytecode = True
    for give in (site.setquit, site.sethelper):  # what an interpreter with `site` has
        give()
    return fds


def _open_at(folder: str) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _move_packages(old: str, new: str) -> None:
    """Let loaded packages look for their further modules in `new` instead of `old`."""
    for module in list(sys.modules.values()):
        if hasattr(module, "__path__"):
            module.__path__ = [path.replace(old, new, 1) for path in module.__path__]


def _add_locks() -> None:
    """Give `multiprocessing` locks among threads, as its `ThreadPool` makes some: the real ones need /dev/shm."""
    module = sys.modules["_multiprocessing"] = ModuleType("_multiprocessing")
    _lock_of_threads.SEM_VALUE_MAX = (1 << 31) - 1  # type: ignore[attr-defined]
    module.__dict__.update(SemLock=_lock_of_threads, sem_unlink=lambda name: None, flags={})


def _lock_of_threads(kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> SimpleNamespace:
    lock: Any = threading.Semaphore(value) if kind else threading.RLock()
    methods = {"__enter__": lock.acquire, "__exit__": lambda *error: lock.release(), "_after_fork": lambda: None}
    attributes = {"kind": kind, "maxvalue": maxvalue, "name": None, "handle": 0}
    return SimpleNamespace(acquire=lock.acquire, release=lock.release, **methods, **attributes)
