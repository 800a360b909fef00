"""Takes care that a program with many busy threads gets no more of a crowded machine than one with a single thread."""

import math
import os

from reward.sandbox.jail import lockdown

_WEIGHT_RATIO = 1.25  # of the shares of two threads whose niceness differs by one
_MAX_NICENESS = 19


def num_threads(pid: int) -> int:
    """Threads of a child that has not been waited for; 1 where /proc is mounted to hide it (hidepid)."""
    try:
        return int(_stat(f"/proc/{pid}/stat")[17])
    except FileNotFoundError:
        return 1


class Priority:
    """The priority of one child and its threads, which is only ever lowered.

    Args:
        pid: the child, the leader of its process group.
        uid: its user if that is not the slot's.
    """

    __slots__ = ("_niceness", "_pid", "_uid")

    def __init__(self, pid: int, uid: int | None) -> None:
        """Keep the parts."""
        self._pid, self._uid, self._niceness = pid, uid, 0

    def lower_if_crowded(self) -> None:
        """Give all threads together the share of a single one if several are busy now."""
        if self._niceness == _MAX_NICENESS:
            return
        niceness = min(_MAX_NICENESS, math.ceil(math.log(self._num_busy_threads(), _WEIGHT_RATIO)))
        if niceness > self._niceness:
            self._niceness = niceness
            lockdown.do_as(self._uid, lambda: os.setpriority(os.PRIO_PGRP, self._pid, niceness))

    def _num_busy_threads(self) -> int:
        folder = f"/proc/{self._pid}/task"
        num_busy = 0
        for thread in os.listdir(folder):
            try:
                num_busy += _stat(f"{folder}/{thread}/stat")[0] == b"R"
            except OSError:  # it has ended meanwhile
                continue
        return max(1, num_busy)


def _stat(path: str) -> list[bytes]:
    """The fields after the name, which may hold anything."""
    with open(path, "rb", buffering=0) as file:
        return file.read().rpartition(b")")[2].split()
