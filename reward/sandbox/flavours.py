"""Which modules a zygote has loaded: forking costs what is loaded, importing costs what is not."""

import contextlib
import importlib.util
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from typing import Any

from reward.sandbox.jail.leetcode import names_need_library
from reward.sandbox.jail.values import LIBRARY

# What most answers to programming problems import, what the sandbox itself needs, and unicodedata, which the compiler
# imports for names beyond ASCII and for `\N{DEGREE SIGN}`.
_LEAN = (
    "abc array bisect builtins collections collections.abc contextlib copy enum functools gc heapq io itertools json "
    "math operator os random re string sys threading time types typing unicodedata"
)
# What other answers import, and what these import lazily.
_FULL = (
    f"{_LEAN} ast base64 binascii calendar cmath codecs copyreg csv ctypes dataclasses datetime decimal difflib "
    "encodings.ascii encodings.idna encodings.latin_1 fractions getpass hashlib hmac html inspect keyword linecache "
    "locale numbers pickle platform pprint queue reprlib secrets select selectors shutil signal socket statistics stat "
    "struct subprocess tempfile textwrap timeit tokenize traceback unittest uuid warnings weakref zlib "
    "_strptime"
)
_NUMPY = f"{_FULL} numpy.fft numpy.lib.stride_tricks numpy.linalg numpy.ma numpy.polynomial numpy.random numpy"
_IMPORT = re.compile(r"\b(?:import|from)(?:[ \t\f]|\\\r?\n)+((?:[\w. \t\f,]|\\\r?\n)+)")
_IMPORTS_MORE = ("__import__", "import_module")
_ENCODING = re.compile(r"code\([^)\n]{0,40}?['\"]([\w -]+)")
_LEAN_ENCODINGS = ("ascii", "latin-1", "latin1", "utf-8", "utf8")  # others are modules
_NOT_LEAN = sys.stdlib_module_names - set(_LEAN.split())


@dataclass(slots=True, kw_only=True, frozen=True)
class Flavour:
    """A kind of zygote."""

    modules: tuple[str, ...]
    package: str | None = None  # one that is installed beside the standard library
    all_extensions: bool = False  # also load every extension module, where programs cannot

    def settings(self) -> dict[str, Any]:
        """What the zygote is told."""
        zones, environment = time_zones()
        return {
            "modules": list(self.modules),
            "standard": sysconfig.get_path("stdlib"),
            "extra": None if self.package is None else folder_of(self.package),
            "all_extensions": self.all_extensions,
            "zones": zones,
            "environment": environment,
        }


FLAVOURS = {
    "lean": Flavour(modules=tuple(_LEAN.split())),
    "full": Flavour(modules=tuple(_FULL.split()), all_extensions=True),
    "numpy": Flavour(modules=tuple(_NUMPY.split()), package="numpy", all_extensions=True),
}


def choose(code: str, arguments: str = "", *, leetcode: bool = False) -> str:
    """Return the least flavour that has what the code seems to import, and what its arguments, as text, are made of.

    `leetcode`: it finds names without import, too.

    A wrong guess costs time only.
    """
    mentioned = set()
    for names in _IMPORT.findall(code):
        mentioned.update(re.findall(r"\w+", names))
    imports_more = any(word in code for word in _IMPORTS_MORE)
    if "numpy" in mentioned or (imports_more and "numpy" in code):
        return "numpy" if folder_of("numpy") is not None else "full"
    # Words of comments and imported names are among them: only names of modules count.
    is_lean = not mentioned & _NOT_LEAN and not imports_more
    is_lean = is_lean and all(name.lower() in _LEAN_ENCODINGS for name in _ENCODING.findall(code))
    is_lean = is_lean and not (leetcode and names_need_library(code))
    is_lean = is_lean and not any(f'{{"{name}": [' in arguments for _, name in LIBRARY)
    return "lean" if is_lean else "full"


def time_zones() -> tuple[list[str], dict[str, str]]:
    """Folders of time zones for `zoneinfo`, and the environment in which it finds them: the machine's, or tzdata's."""
    standard = str(sysconfig.get_config_var("TZPATH")).split(os.pathsep)
    zones = [folder for folder in standard if os.path.isfile(os.path.join(folder, "UTC"))]
    package = folder_of("tzdata")
    if zones or package is None:
        return zones, {}
    folder = os.path.join(package, "tzdata", "zoneinfo")
    return [folder], {"PYTHONTZPATH": folder}


def folder_of(package: str) -> str | None:
    """The folder that the package is installed in, or None."""
    with contextlib.suppress(ValueError, ImportError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            return os.path.dirname(os.path.dirname(spec.origin))
    return None
