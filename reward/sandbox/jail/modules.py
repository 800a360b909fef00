"""The modules that programs find loaded, and the way to the others."""

import contextlib
import ctypes
import importlib
import os
import site
import sys
import warnings

# Extension modules that need the system's libraries, which a program could not load.
_NEEDING_LIBRARIES = ("zlib", "_bz2", "_lzma", "_hashlib", "_ssl", "_sqlite3")


def load(modules: list[str], standard: str, package: str | None) -> list[int]:
    """Import what programs will want; returns the descriptors by which they find the rest.

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
    """Let loaded packages look for their further modules elsewhere."""
    for module in list(sys.modules.values()):
        if hasattr(module, "__path__"):
            module.__path__ = [path.replace(old, new, 1) for path in module.__path__]
