"""The hostile programs, which are data beside the tests."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def hostile_programs() -> list:
    """Return the rows of `hostile_programs.py`."""
    path = Path(__file__).with_name("hostile_programs.py")
    spec = importlib.util.spec_from_file_location("hostile_programs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.HOSTILE_PROGRAMS)
