"""Lets the tests of this folder import its tables of programs, and gives each a sandbox."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.sandbox import Sandbox

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(num_slots=2)
    yield sandbox
    sandbox.close()
