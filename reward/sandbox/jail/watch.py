"""The slot's measurements of its running program: time, memory that no kernel limit covers, threads, files.

The scratch folder is flat, and programs cannot remove or rename files in it, so that every file stays where it counts.
"""

import contextlib
import os
from time import clock_gettime, monotonic

MAX_QUEUED = 3
"""The seconds that a program may wait for a processor, without being charged, for each charged second of wall time."""
_MAX_FILES = 256
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's
_SCHEDULED_TIME = 2  # CPUCLOCK_SCHED: the kind of a process's clock that counts nanoseconds, of all its threads


class Clock:
    """The time that a program has used; the program is a child that has not been waited for.

    A verdict must not depend on what else runs on the machine. So the processor time of the program's threads is
    counted, and only a part of the wall time, as a ceiling for programs that sleep. Time in which the program is ready
    to run but other processes have the processor is not counted.
    """

    def __init__(self, *, pid: int, wall_factor: float) -> None:
        self._pid, self._wall_factor = pid, wall_factor
        self._cpu_clock = ~pid << 3 | _SCHEDULED_TIME

    def used_s(self, ready_at: float, start_cpu_s: float) -> float:
        """Return the seconds charged; `start_cpu_s` are the CPU seconds used before the program was ready."""
        cpu_s, wall_s = clock_gettime(self._cpu_clock) - start_cpu_s, monotonic() - ready_at
        if wall_s <= cpu_s * self._wall_factor:
            return cpu_s
        return max(cpu_s, self._waited_s(wall_s) / self._wall_factor)

    def left_s(self, ready_at: float, start_cpu_s: float, limit_s: float) -> float:
        """Return the wall seconds until a program on one core may reach the limit."""
        limit_wall_s, wall_s = limit_s * self._wall_factor, monotonic() - ready_at
        if wall_s >= limit_wall_s:
            wall_s = self._waited_s(wall_s)
        return min(limit_s - clock_gettime(self._cpu_clock) + start_cpu_s, limit_wall_s - wall_s)

    def _waited_s(self, wall_s: float) -> float:
        """Return the wall seconds without those in which the first thread waited for a processor, if known."""
        try:
            with open(f"/proc/{self._pid}/schedstat", "rb", buffering=0) as file:
                queued_s = int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # hidden, or not counted
            return wall_s
        return max(wall_s - queued_s, wall_s / (1 + MAX_QUEUED))


def threads_and_page_tables(pid: int) -> tuple[int, int]:
    """Return a process's number of threads and bytes of page tables; 1 and 0 if it has ended or /proc hides it.

    The first thread, for which all stand, may have ended before the others.
    """
    try:
        status = _status(f"/proc/{pid}")
        if b"VmPTE" not in status:
            status |= _status(f"/proc/{pid}/task/{os.listdir(f'/proc/{pid}/task')[-1]}")
    except OSError:
        return 1, 0
    return int(status.get(b"Threads", 1)), int(status.get(b"VmPTE", b"0").split()[0]) << 10


def _status(folder: str) -> dict[bytes, bytes]:
    with open(f"{folder}/status", "rb", buffering=0) as file:
        return dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)


def files_are_within_limits(path: str, max_bytes: float) -> bool:
    """Return whether both the size and the number of the files are within the limits."""
    num_files = num_bytes = 0
    with os.scandir(path) as entries:
        for entry in entries:
            num_files += 1
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile: possible without Landlock only
                num_bytes += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
            if num_files > _MAX_FILES or num_bytes > max_bytes:
                return False
    return True


def empty_folder(folder: str) -> None:
    """Remove everything in the folder that can be removed."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    os.utime(folder, (0, 0))  # its times tell the next program nothing
