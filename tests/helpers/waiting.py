"""Waits for a condition, so that no test depends on how fast the machine is."""

import contextlib
import time
from collections.abc import Callable

import psutil

PATIENCE_S = 300.0
"""Bound on each wait, in seconds. It is far above what an idle machine needs, and only a test that fails reaches it."""
LOOK_EVERY_S = 0.05


def comes_true(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
    """Return whether ``condition`` returns a true value within ``timeout_s``, as soon as it does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not: only its exit status is left, for its parent."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False
