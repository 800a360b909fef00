"""Keeps text from being run as code where a library reads numbers and formulas by `eval`."""

import sys
from types import CodeType
from typing import Any

# What sympy's parser makes of numbers, operators and functions of elementary mathematics.
_NAMES = """
    Integer Float Rational Symbol Function Add Mul Pow Abs E I acos asin atan cos cosh exp factorial ln log pi sin sinh
    sqrt tan tanh
"""
_run = eval


def forbid_code(*packages: str) -> None:
    """Replace `eval` in all loaded modules of the packages by `eval_formula`, which runs no other code."""
    for name, module in list(sys.modules.items()):
        if any(f"{name}.".startswith(f"{package}.") for package in packages):
            module.__dict__["eval"] = eval_formula


def eval_formula(source: str | CodeType, names: dict[str, Any] | None = None, local: Any = None) -> Any:
    """Evaluate a formula that names only elementary functions and no attributes; ValueError for any other code."""
    code = compile(source.strip(), "answer", "eval", dont_inherit=True) if isinstance(source, str) else source
    if foreign := set(code.co_names) - set(_NAMES.split()):
        raise ValueError(f"no formula: it names {', '.join(sorted(foreign))}")
    if any(isinstance(constant, CodeType) for constant in code.co_consts):
        raise ValueError("no formula: it has functions of its own")
    return _run(code, {} if names is None else names, local)
