"""A short version of `python scripts/soak_sandbox.py`, which runs 100,000 programs."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
SCRIPT = Path(__file__).parents[3] / "scripts" / "soak_sandbox.py"
_SPEC = importlib.util.spec_from_file_location("soak_sandbox", SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
soak_sandbox = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(soak_sandbox)


def test_2000_runs_leak_nothing() -> None:
    measured = soak_sandbox.soak(num_runs=2000, num_drivers=2)
    assert soak_sandbox.leaks(measured) == []
    assert measured[-1]["scratch_files"] == 0


def test_a_leak_is_found() -> None:
    first = {"rss_kb_here": 10_000, "fds_here": 10}
    grown = {"rss_kb_here": 10_000 + soak_sandbox.TOLERATED_RSS_KB + 1, "fds_here": 11}
    assert soak_sandbox.leaks([first, first, grown]) == ["rss_kb_here: 10000 to 14097", "fds_here: 10 to 11"]
    assert soak_sandbox.leaks([grown, first, first]) == []
