"""One slot of the zygote: forks a locked-down child for each request, watches its deadline, and clears up after it.

Programs find in their memory a copy of the slot's, with what that has freed: nothing of a program may pass through it.

Forking costs what is loaded, so this and its neighbours do without `socket`, `dataclasses` and `shutil`.
"""

import _socket
import array
import contextlib
import gc
import json
from marshal import loads
from os import (
    O_CLOEXEC,
    O_NONBLOCK,
    _exit,
    close,
    closerange,
    dup2,
    getpid,
    pidfd_open,
    pipe2,
    read,
    setsid,
    waitpid,
    waitstatus_to_exitcode,
    write,
)
from select import POLLIN, poll
from signal import SIGKILL, pidfd_send_signal
from time import monotonic, monotonic_ns

from reward.sandbox.jail import kernel, landlock, lockdown, seccomp
from reward.sandbox.jail.clock import Clock
from reward.sandbox.jail.kernel import fork
from reward.sandbox.jail.library import folder_fds, reopen_folders
from reward.sandbox.jail.lockdown import MAX_THREADS, Cell, lock_down, rlimits
from reward.sandbox.jail.output import Output
from reward.sandbox.jail.page_tables import has_too_large_page_tables
from reward.sandbox.jail.priority import Priority, num_threads
from reward.sandbox.jail.program import run as run_program
from reward.sandbox.jail.scratch import Scratch

MAX_HEADER_BYTES = 4096
NUM_REQUEST_FDS = 7  # job, standard input, standard error, result, file for standard output, and the pipe's two ends
_TICK_S = 0.05  # how often what a running program uses is measured
_FIRST_TICK_S = 0.005  # where threads are counted: they are made fast
_PAST_ALL_FDS = 1 << 20


class _Ending:
    """What the slot saw of one child."""

    __slots__ = ("control", "returncode", "seconds", "stopped_for")

    def __init__(self) -> None:
        self.control = b""  # reported before the code under test ran: "ready", when, "compiled" or "compile_error"
        self.stopped_for = (
            ""  # why it was killed: time, output, scratch, memory, threads, cancelled; empty: it ended by itself
        )
        self.returncode = 1  # exit status; negative: signal
        self.seconds = 0.0  # time used, see `Clock`


def make_cell(path: str, scratch_bytes: int, layers: list[str], folders: list[str]) -> Cell:
    """Prepare what every test of the slot shares; the layers are those that the probe found to work.

    What a test's process can inherit is put on the slot itself, once.
    """
    uid = claim = ruleset = None
    scratch = Scratch(path, scratch_bytes, is_mounted="scratch" in layers)
    if "uid" in layers:
        uid, claim = lockdown.claim_uid()
    namespaces = lockdown.NAMESPACES * ("namespaces" in layers) | kernel.CLONE_NEWNS * scratch.is_mounted
    if namespaces:
        lockdown.enter_namespaces(namespaces)
    scratch.give_to(uid)
    if scratch.is_mounted:
        lockdown.hide_packages(folders)
        reopen_folders()
    if "landlock" in layers:
        ruleset = landlock.create_ruleset([*lockdown.readable_rules(folders), (scratch.path, scratch.rights)])
    own_memory = lockdown.own_address_space()
    sandbox_filter = seccomp.Filter() if "seccomp" in layers else None
    counts_threads = not lockdown.lock_slot_down(scratch, uid)
    if sandbox_filter is not None:
        sandbox_filter.install_in_slot()
    fds = folder_fds() if ruleset is None else [*folder_fds(), ruleset]
    return Cell(
        scratch=scratch,
        uid=uid,
        ruleset=ruleset,
        filter=sandbox_filter,
        own_memory=own_memory,
        counts_threads=counts_threads,
        fds=fds,
        claim=claim,
    )


def serve(connection: _socket.socket, cell: Cell) -> None:
    """Answer requests until the trusted process closes the connection."""
    gc.freeze()  # what a program's end looks through is its own
    try:
        connection.send(json.dumps({"pid": getpid(), "uid": cell.uid}).encode())
        while _answer(connection, cell):
            pass
    finally:
        cell.scratch.remove()


def _answer(connection: _socket.socket, cell: Cell) -> bool:
    """Answer one request; returns whether there may be another: a scratch directory is for one program that uses it.

    A frame for each, as its program can look into the frames above its own.
    """
    header, fds = receive(connection, NUM_REQUEST_FDS)
    if not header:
        return False
    ending = _run_test(connection, cell, loads(header), fds)
    is_spent = not cell.scratch.is_untouched
    words = (is_spent, ending.returncode, ending.seconds, ending.stopped_for.encode(), ending.control)
    connection.send(b"%d %d %.6f %s %s" % words)
    return not is_spent


def receive(connection: _socket.socket, max_fds: int) -> tuple[bytes, list[int]]:
    """Receive a message and the descriptors with it; empty when the connection is closed."""
    fds = array.array("i")
    message, ancillary, _, _ = connection.recvmsg(MAX_HEADER_BYTES, _socket.CMSG_SPACE(max_fds * fds.itemsize))
    for _, _, data in ancillary:
        fds.frombytes(data)
    return message, list(fds)


def _run_test(connection: _socket.socket, cell: Cell, limits: dict[str, float], fds: list[int]) -> _Ending:
    # What the child needs is worked out before the fork: there every page that it touches is copied first.
    control, control_writer = pipe2(O_CLOEXEC | O_NONBLOCK)
    job, stdin, stderr, result, stdout_file, stdout_reader, stdout = fds
    kept = sorted({job, result, control_writer, *cell.fds})
    gaps = list(zip([3, *(fd + 1 for fd in kept)], [*kept, _PAST_ALL_FDS], strict=True))
    lowered = rlimits(cell, limits)
    parent = getpid()
    started = monotonic()
    try:
        pid = fork()
    except OSError:  # no process to be had: an answer without "ready" says so
        for fd in (*fds, control, control_writer):
            close(fd)
        return _Ending()
    if pid == 0:
        _become_program(cell, lowered, [job, stdin, stdout, stderr, result], control_writer, gaps, parent)
    for fd in (job, stdin, stdout, stderr, result, control_writer):
        close(fd)
    ending = _Ending()
    output = Output(stdout_reader, stdout_file, int(limits["output_bytes"]))
    pidfd = pidfd_open(pid)
    try:
        clock = Clock(pid=pid, pidfd=pidfd, started=started, wall_factor=limits["wall_factor"])
        _watch(connection, cell, limits, ending, clock, control, output)
    finally:
        pidfd_send_signal(pidfd, SIGKILL)  # a child that has ended is there until it is waited for
        ending.returncode = waitstatus_to_exitcode(waitpid(pid, 0)[1])
        # Under seccomp there is nothing but the one process; to make sure costs a fork, so only after a violent end.
        if cell.uid is not None and (ending.returncode < 0 or cell.filter is None):
            lockdown.kill_all_of(cell.uid)
        output.close()
        close(pidfd)
        close(control)
        if not ending.stopped_for and not cell.scratch.is_within_limits():
            ending.stopped_for = "scratch"
        cell.scratch.empty()
    return ending


def _become_program(
    cell: Cell,
    lowered: list[tuple[int, tuple[int, int]]],
    fds: list[int],
    control: int,
    gaps: list[tuple[int, int]],
    parent: int,
) -> None:
    """Turn this child into the sandboxed program; never returns."""
    try:
        setsid()
        job, stdin, stdout, stderr, result = fds
        dup2(stdin, 0)
        dup2(stdout, 1)
        dup2(stderr, 2)
        for first, end in gaps:  # the program sees nothing open but these and what its start still needs
            closerange(first, end)
        lock_down(cell, lowered, parent=parent)
        write(control, b"ready %d " % monotonic_ns())
    except BaseException as error:  # fail closed, whatever it is
        with contextlib.suppress(OSError):
            write(2, f"sandbox: {error}".encode())
        _exit(1)
    try:
        run_program(job, control, result)
    finally:  # whatever a program raises there, a slot's code it must not reach
        _exit(1)


def _watch(
    connection: _socket.socket,
    cell: Cell,
    limits: dict[str, float],
    ending: _Ending,
    clock: Clock,
    control: int,
    output: Output,
) -> None:
    """Wait for the child's end, the end of its time, too much of something, or the trusted process's word.

    The child's own time stamp says when it was ready, so that a short run wakes this process only once.
    """
    waiting = poll()
    waiting.register(clock.pidfd, POLLIN)
    waiting.register(connection, POLLIN)
    priority = Priority(clock.pid, cell.uid)
    ready_at: float | None = None
    startup_s, test_s = limits["startup_s"], limits["test_s"]
    tick_s = _FIRST_TICK_S if cell.counts_threads else _TICK_S
    wait_s = min(startup_s, test_s, tick_s)
    while True:
        events = dict(waiting.poll(max(0.0, min(wait_s, output.pause_s)) * 1000))
        if ready_at is None:
            ready_at = _read_report(control, ending)
        if clock.pidfd in events:
            break
        if connection.fileno() in events:
            ending.stopped_for = "cancelled"
            break
        left_s = startup_s - (monotonic() - clock.started) if ready_at is None else clock.left_s(ready_at, test_s)
        if left_s <= 0:
            ending.stopped_for = "time"
            break
        if not events and not output.drain():
            ending.stopped_for = "output"
            break
        if not cell.scratch.is_within_limits():
            ending.stopped_for = "scratch"
            break
        if has_too_large_page_tables(clock.pid, limits["memory_bytes"]):
            ending.stopped_for = "memory"
            break
        if (threads := num_threads(clock.pid)) > 1:
            if cell.counts_threads and threads > MAX_THREADS:
                ending.stopped_for = "threads"
                break
            priority.lower_if_crowded()
        tick_s = min(2 * tick_s, _TICK_S)
        wait_s = min(left_s, tick_s, clock.pace())
    _read_report(control, ending)
    if ready_at is None or ready_at > clock.started + startup_s:
        ending.control = b""
    else:
        ending.seconds = clock.used_s(ready_at)


def _read_report(control: int, ending: _Ending) -> float | None:
    """Add what the child has reported since; returns when it was ready, if that is known now."""
    with contextlib.suppress(BlockingIOError):
        ending.control += read(control, 4096)
    words = ending.control.split(b" ", 2)
    if len(words) < 3 or words[0] != b"ready":
        return None
    return int(words[1]) / 1e9
