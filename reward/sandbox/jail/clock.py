"""How much of its time a program has used, and that it runs on no more than one core.

A verdict must not depend on what else runs: what counts is the processor time of the program's threads, and of the wall
clock only a part, as a ceiling for programs that wait. To be ready while others have the processor is no such waiting.
"""

from signal import SIGCONT, SIGSTOP, pidfd_send_signal
from time import clock_gettime, monotonic

_SCHEDULED_TIME = 2  # CPUCLOCK_SCHED: the kind of a process's clock that counts nanoseconds, of all its threads
MAX_QUEUED = 3
"""For each second of the wall clock that counts, how many a program may be ready without running, which do not."""
_TOLERATED_LEAD_S = 0.01  # the two clocks drift apart by less


class Clock:
    """The clocks of one child; it must not have been waited for.

    Args:
        pid: the child.
        pidfd: descriptor of it.
        started: monotonic time before it was forked.
        wall_factor: wall seconds that count as one second of processor time.
    """

    __slots__ = ("_cpu_clock", "_is_stopped", "_wall_factor", "pid", "pidfd", "started")

    def __init__(self, *, pid: int, pidfd: int, started: float, wall_factor: float) -> None:
        """Keep the parts."""
        self.pid, self.pidfd, self.started = pid, pidfd, started
        self._cpu_clock = ~pid << 3 | _SCHEDULED_TIME
        self._wall_factor = wall_factor
        self._is_stopped = False

    def used_s(self, ready_at: float) -> float:
        """Seconds that count against the limit."""
        cpu_s, wall_s = clock_gettime(self._cpu_clock), monotonic() - ready_at
        if wall_s <= cpu_s * self._wall_factor:
            return cpu_s
        return max(cpu_s, self._waited_s(wall_s) / self._wall_factor)

    def left_s(self, ready_at: float, limit_s: float) -> float:
        """Wall seconds until the limit may be reached, on one core."""
        limit_wall_s, wall_s = limit_s * self._wall_factor, monotonic() - ready_at
        if wall_s >= limit_wall_s:
            wall_s = self._waited_s(wall_s)
        return min(limit_s - clock_gettime(self._cpu_clock), limit_wall_s - wall_s)

    def _waited_s(self, wall_s: float) -> float:
        """The wall seconds without those in which the first thread was ready and did not run, if the kernel says."""
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb", buffering=0) as file:
                queued_s = int(file.read().split()[1]) / 1e9
        except (OSError, IndexError):  # hidden, or not counted
            return wall_s
        return max(wall_s - queued_s, wall_s / (1 + MAX_QUEUED))

    def pace(self) -> float:
        """Stop the program where its threads are ahead of the wall clock, continue it where that has caught up.

        Returns:
            Wall seconds after which to call again; infinity: as convenient.
        """
        lead_s = clock_gettime(self._cpu_clock) - (monotonic() - self.started)
        if self._is_stopped and lead_s <= 0:
            self._is_stopped = False
            pidfd_send_signal(self.pidfd, SIGCONT)
        elif not self._is_stopped and lead_s > _TOLERATED_LEAD_S:
            self._is_stopped = True
            pidfd_send_signal(self.pidfd, SIGSTOP)
        return lead_s if self._is_stopped else float("inf")
