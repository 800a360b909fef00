"""A slot is the process `python -I -S slot.py CONNECTION_FD SCRATCH`, which starts with an empty environment.

It loads what programs will import, tries out which layers of isolation work here, and says so. Then it forks a
locked-down child for each request, watches its deadline, and clears up after it. It ends with the trusted process.

Each program begins with a copy of the slot's memory, freed memory included. So nothing that a program reads or writes
may pass through the slot, where later programs would find it.
"""

import os
import sys
import types


def _make_jail_importable() -> None:
    """Make `reward.sandbox.jail` importable without running the packages above it, which programs must not see."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, path in (("reward", os.path.dirname(folder)), ("reward.sandbox", folder)):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package


_make_jail_importable()

import _socket  # noqa: E402
import array  # noqa: E402
import contextlib  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
from marshal import loads  # noqa: E402

from reward.sandbox.jail import lockdown, modules, program, watch  # noqa: E402
from reward.sandbox.jail.lockdown import LAYERS, MAX_THREADS, Cell  # noqa: E402

_MAX_MESSAGE_BYTES = 1 << 16
_NUM_REQUEST_FDS = 7  # job, standard input, standard error, result, file for standard output, and the pipe's two ends
_CHECK_PARENT_MS = 1000
_FIRST_TICK_S, _TICK_S = 0.005, 0.05  # how often what a running program uses is measured
_PAST_ALL_FDS = 1 << 20
# Page tables, which no limit counts: a page far from all others takes two pages more, dense ones less than this share.
_SPARE_TABLE_BYTES, _TABLE_SHARE = 32 << 20, 64
_PIECE_BYTES = 1 << 16
_MAX_PIECES = 1 << 10  # more than a pipe holds, of a byte each too; who goes on writing must not keep its slot here


def main() -> None:
    """Serve until the trusted process closes the connection or ends; then remove the scratch directory."""
    connection, folder, trusted = _socket.socket(fileno=int(sys.argv[1])), sys.argv[2], os.getppid()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the trusted process is gone
        settings = connection.recv(_MAX_MESSAGE_BYTES)
        if not os.path.isdir("/proc/self/fd"):  # by which programs import
            layers = dict.fromkeys(LAYERS, "/proc is not mounted")
            connection.send(json.dumps({"uid": None, "layers": layers}).encode())
        elif settings:
            cell, layers = _prepare(folder, json.loads(settings))
            connection.send(json.dumps({"uid": cell.uid, "layers": layers}).encode())
            while _wait_for_request(connection, trusted) and _answer(connection, cell, trusted):
                pass
    with contextlib.suppress(OSError):
        watch.empty_folder(folder)
        os.rmdir(folder)


def _prepare(folder: str, settings: dict[str, list[str]]) -> tuple[Cell, dict[str, str]]:
    standard, *packages = settings["folders"]
    fds = modules.load(settings["modules"], standard, packages[0] if packages else None)
    readable = [*settings["folders"], *settings["zones"]]
    layers = lockdown.try_layers(folder, readable)
    working = [name for name, reason in layers.items() if not reason]
    cell = Cell(scratch=folder, layers=working, folders=readable, fds=fds)
    watch.empty_folder(folder)
    os.environ.clear()
    exec(compile("", "warm-up", "exec"))  # the first compilation sets up what takes longer than most programs
    gc.collect()
    gc.freeze()  # so that no collection in a child touches, and so copies, the pages it shares with the slot
    gc.disable()
    return cell, layers


def _wait_for_request(connection: _socket.socket, trusted: int) -> bool:
    """Return whether a request came, False if the trusted process has ended.

    The connection alone does not show that end: another process may hold a copy of its other end open.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while os.getppid() == trusted:
        if poll.poll(_CHECK_PARENT_MS):
            return True
    return False


def _answer(connection: _socket.socket, cell: Cell, trusted: int) -> bool:
    """Answer one request; return whether there may be another.

    Each request has a frame of its own, because its program can look into the frames above its own.
    """
    fds = array.array("i")
    room = _socket.CMSG_SPACE(_NUM_REQUEST_FDS * fds.itemsize)
    header, ancillary, _, _ = connection.recvmsg(_MAX_MESSAGE_BYTES, room)
    if not header:
        return False
    for _, _, data in ancillary:
        fds.frombytes(data)
    connection.send(_run(cell, loads(header), list(fds), trusted))
    return True


def _run(cell: Cell, limits: dict[str, float], fds: list[int], trusted: int) -> bytes:
    """Run a program; return its exit status, its seconds, why it was killed (if it was) and its report."""
    control, control_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    job, stdin, stderr, result, stdout_file, stdout_reader, stdout = fds
    started, parent = time.monotonic(), os.getpid()
    try:
        pid = os.fork()
    except OSError:  # no process to be had: an answer without "ready" says so
        for fd in (*fds, control, control_writer):
            os.close(fd)
        return b"1 0  "
    if pid == 0:
        _become_program(cell, limits, [job, stdin, stdout, stderr, result], control_writer, parent)
    for fd in (job, stdin, stdout, stderr, result, control_writer):
        os.close(fd)
    run = _Run(pid, cell, limits, started, control)
    run.reader, run.file = stdout_reader, stdout_file
    try:
        run.watch(trusted)
    finally:
        signal.pidfd_send_signal(run.pidfd, signal.SIGKILL)  # a child that has ended is there until it is waited for
        returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        run.drain()
        for fd in (run.pidfd, control, stdout_reader, stdout_file):
            os.close(fd)
        if not run.stopped_for and not watch.files_are_within_limits(cell.scratch, limits["scratch_bytes"]):
            run.stopped_for = "scratch"
        watch.empty_folder(cell.scratch)
    return b"%d %.6f %s %s" % (returncode, run.seconds, run.stopped_for.encode(), run.report)


def _become_program(cell: Cell, limits: dict[str, float], fds: list[int], control: int, parent: int) -> None:
    """Turn this child into the sandboxed program; never returns."""
    try:
        os.setsid()
        job, stdin, stdout, stderr, result = fds
        for target, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, target)
        # The program sees nothing open but these and what its start still needs.
        kept = sorted({job, result, control, *cell.fds})
        for before, after in zip([2, *kept], [*kept, _PAST_ALL_FDS], strict=True):
            os.closerange(before + 1, after)
        cell.lock_down(limits, parent=parent)
        os.write(control, b"ready %d %.6f " % (time.monotonic_ns(), time.process_time()))
    except BaseException as error:  # fail closed, whatever it is
        with contextlib.suppress(OSError):
            os.write(2, f"sandbox: {error}".encode())
        os._exit(1)
    try:
        program.run(job, control, result)
    finally:  # whatever a program raises there, a slot's code it must not reach
        os._exit(1)


class _Run:
    """One child process, and what the slot measures of it.

    Standard output is a pipe. The kernel moves its content to the file that the trusted process reads. If the slot read
    the pipe, all its later programs would get a copy of the content with the slot's memory.
    """

    def __init__(self, pid: int, cell: Cell, limits: dict[str, float], started: float, control: int) -> None:
        self.pid, self.pidfd, self._cell, self._limits = pid, os.pidfd_open(pid), cell, limits
        self._started, self._control = started, control
        self._clock = watch.Clock(pid=pid, wall_factor=limits["wall_factor"])
        self.reader = self.file = -1  # of the pipe, which must not block, as the program may read from it too
        self._room = int(limits["output_bytes"]) + 1  # one more: the trusted process sees that it was too much
        self.report = b""  # before the code under test ran: "ready", when, CPU seconds then, what compiling gave
        self.stopped_for = ""  # why it was killed: time, output, scratch, memory, threads, lost; "": it ended
        self.seconds = 0.0  # time used, see `Clock`

    def drain(self) -> bool:
        """Move the output printed so far; return whether it is within its limit."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MAX_PIECES):
                size = min(_PIECE_BYTES, self._room)
                moved = size and os.splice(self.reader, self.file, size, flags=os.SPLICE_F_NONBLOCK)
                if not moved:
                    break
                self._room -= moved
        return self._room > 0

    def watch(self, trusted: int) -> None:
        """Wait until the child ends, exceeds a limit, or the trusted process ends.

        The child's own time stamp says when it was ready, so that a short run wakes this process seldom.
        """
        waiting = select.poll()
        waiting.register(self.pidfd, select.POLLIN)
        waiting.register(self.reader, select.POLLIN)
        startup_s, test_s, ready = self._limits["startup_s"], self._limits["test_s"], None
        tick_s = left_s = _FIRST_TICK_S
        next_tick = time.monotonic() + tick_s
        while not self.stopped_for:
            events = dict(waiting.poll(max(0.0, min(left_s, next_tick - time.monotonic())) * 1000))
            if self.pidfd in events:
                break
            if events.get(self.reader) == select.POLLHUP:  # the program has closed it
                waiting.unregister(self.reader)
            ready = ready or self._read_report()
            waited_s = time.monotonic() - self._started
            left_s = self._clock.left_s(*ready, test_s) if ready else startup_s - waited_s
            if left_s <= 0:
                self.stopped_for = "time"
            elif not self.drain():
                self.stopped_for = "output"
            elif time.monotonic() >= next_tick:
                self._measure(trusted)
                tick_s = min(2 * tick_s, _TICK_S)
                next_tick = time.monotonic() + tick_s
        ready = self._read_report()
        if ready is None or ready[0] > self._started + startup_s:
            self.report = b""
        else:
            self.seconds = self._clock.used_s(*ready)

    def _measure(self, trusted: int) -> None:
        num_threads, table_bytes = watch.threads_and_page_tables(self.pid)
        if os.getppid() != trusted:
            self.stopped_for = "lost"
        elif not watch.files_are_within_limits(self._cell.scratch, self._limits["scratch_bytes"]):
            self.stopped_for = "scratch"
        elif table_bytes > _SPARE_TABLE_BYTES + self._limits["memory_bytes"] / _TABLE_SHARE:
            self.stopped_for = "memory"
        elif num_threads > MAX_THREADS:
            self.stopped_for = "threads"

    def _read_report(self) -> tuple[float, float] | None:
        """Add the child's latest report; return when it was ready and its CPU seconds at that time, or None."""
        with contextlib.suppress(BlockingIOError):
            self.report += os.read(self._control, 4096)
        words = self.report.split(b" ", 3)
        return (int(words[1]) / 1e9, float(words[2])) if len(words) == 4 and words[0] == b"ready" else None


if __name__ == "__main__":
    main()
