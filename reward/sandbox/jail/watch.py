"""What the slot measures of its running program: time, memory that no limit counts, threads, files.

The scratch folder is flat, and programs cannot remove or rename files in it, so that every file stays where it counts.
"""

import contextlib
import os
from time import clock_gettime, monotonic

MAX_QUEUED = 3
"""For each second of the wall clock that counts, how many a program may be ready without running, which do not."""
_MAX_FILES = 256
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's
_SCHEDULED_TIME = 2  # CPUCLOCK_SCHED: the kind of a process's clock that counts nanoseconds, of all its threads


class Clock:
    """How much of its time a program has used, a child that has not been waited for.

    A verdict must not depend on what else runs: what counts is the processor time of the program's threads, and of the
    wall clock only a part, as a ceiling for programs that wait. To be ready while others have the processor is no such
    waiting.
    """

    def __init__(self, *, pid: int, wall_factor: float) -> None:
        self._pid, self._wall_factor = pid, wall_factor
        self._cpu_clock = ~pid << 3 | _SCHEDULED_TIME

    def used_s(self, ready_at: float, start_cpu_s: float) -> float:
        """Seconds that count against the limit; `start_cpu_s`: of the processor, before the program was ready."""
        cpu_s, wall_s = clock_gettime(self._cpu_clock) - start_cpu_s, monotonic() - ready_at
        if wall_s <= cpu_s * self._wall_factor:
            return cpu_s
        return max(cpu_s, self._waited_s(wall_s) / self._wall_factor)

    def left_s(self, ready_at: float, start_cpu_s: float, limit_s: float) -> float:
        """Wall seconds until the limit may be reached, on one core."""
        limit_wall_s, wall_s = limit_s * self._wall_factor, monotonic() - ready_at
        if wall_s >= limit_wall_s:
            wall_s = self._waited_s(wall_s)
        return min(limit_s - clock_gettime(self._cpu_clock) + start_cpu_s, limit_wall_s - wall_s)

    def _waited_s(self, wall_s: float) -> float:
        """The wall seconds without those in which the first thread was ready and did not run, if the kernel says."""
        try:
            with open(f"/proc/{self._pid}/schedstat", "rb", buffering=0) as file:
                queued_s = int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # hidden, or not counted
            return wall_s
        return max(wall_s - queued_s, wall_s / (1 + MAX_QUEUED))


def threads_and_page_tables(pid: int) -> tuple[int, int]:
    """Number of threads, and bytes of page tables; 1 and 0 where it has ended, or /proc is mounted to hide it.

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
    """Whether neither the files' size nor their number is beyond the limits."""
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
    """Remove what is in the folder, as far as possible."""
    for parent, folders, files in os.walk(folder, topdown=False):
        for name in files:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(parent, name))
        for name in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(parent, name))
    os.utime(folder, (0, 0))  # its times tell the next program nothing
