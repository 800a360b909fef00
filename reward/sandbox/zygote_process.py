"""The trusted process's side of the zygote: starts it, asks it for slots, and runs a request on a slot."""

import contextlib
import fcntl
import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from reward.limits import Limits
from reward.sandbox.execution import Program
from reward.sandbox.flavours import Flavour
from reward.sandbox.jail.clock import MAX_QUEUED
from reward.sandbox.jail.lockdown import MAX_THREADS
from reward.sandbox.scratch_folder import ScratchFolder
from reward.sandbox.standard_streams import StandardInput, inherited_stderr, memory_file, output_pipe

_ZYGOTE = Path(__file__).with_name("jail") / "zygote.py"
_START_S = 120.0  # wall seconds for the zygote to load its modules, on a machine busy with other starts
_GRACE_S = 5.0  # wall seconds beyond its deadlines after which a slot counts as stuck
_END_S = 2.0  # wall seconds for the zygote to end its slots and itself, before it is killed
_MAX_ANSWER_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 4096


def pack(program: Program, limits: Limits, timeout_s: float) -> tuple[bytes, StandardInput]:
    """The program as a job, and its standard input."""
    # Marshal is safe in this direction only: what comes back from the child is JSON.
    call = (program.fn_name, program.arguments, program.leetcode, program.is_tested)
    job = marshal.dumps((program.code, *call, program.iterators_end(limits, timeout_s)))
    return job, StandardInput.of(program.stdin, program.code)


class SlotLostError(Exception):
    """A slot or the zygote did not answer: nothing that the program may be blamed for."""


class SlotRefusedError(SlotLostError):
    """The zygote lives, but had no process to make a slot of."""


@dataclass(slots=True, kw_only=True)
class Trace:
    """Everything seen of one run."""

    control: str  # what the child reported before the code under test ran
    stopped_for: str  # why it was killed; empty: it ended by itself
    returncode: int  # exit status; negative: signal
    seconds: float  # time used: of all processors, or of the wall clock, divided by limits.wall_factor
    stdout: bytes  # at most one byte more than the limit
    result: bytes  # as above, of the limit of results
    stderr: str  # the last lines


class Slot:
    """A slot process of a zygote; used by one thread at a time."""

    def __init__(self, connection: socket.socket) -> None:
        """Wait for the slot's first words.

        Raises:
            SlotRefusedError: there is none.
            SlotLostError: it could not get ready.
            OSError: no descriptor to be had here.
        """
        self._connection = connection
        connection.settimeout(_START_S)
        hello = json.loads(self._receive())
        if "refused" in hello:
            raise SlotRefusedError(f"no slot could be started: {hello['refused']}")
        if "error" in hello:
            raise SlotLostError(f"a slot could not get ready: {hello['error']}")
        self.pid: int = hello["pid"]
        self.uid: int | None = hello["uid"]
        self.is_spent = False  # its last program used the scratch directory: it ends, and runs no other
        try:
            self._pidfd: int | None = os.pidfd_open(self.pid)  # its number may be another's, once it has ended
        except ProcessLookupError as error:
            raise SlotLostError("the slot ended") from error

    def run(
        self, job: bytes, stdin: StandardInput, limits: Limits, *, timeout_s: float, max_result_bytes: int
    ) -> Trace:
        """Run a job that `pack` made, once.

        Raises:
            SlotLostError: no answer in time, or no slot any more; the slot must be closed.
            OSError: no descriptor or memory to be had here.
        """
        header = {
            "startup_s": limits.startup_s,
            "test_s": timeout_s,
            "wall_factor": limits.wall_factor,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": max(limits.file_bytes, max_result_bytes + 1),
            "open_files": limits.open_files,
            "output_bytes": limits.output_bytes,
        }
        with contextlib.ExitStack() as stack:

            def kept(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            stdout, stderr, result = (kept(memory_file(None)) for _ in range(3))
            fds = [kept(memory_file(job)), kept(stdin.open(self.uid)), stderr, result, stdout]
            fds += map(kept, output_pipe(self.uid))
            self._connection.settimeout(limits.startup_s + timeout_s * limits.wall_factor * (1 + MAX_QUEUED) + _GRACE_S)
            try:
                socket.send_fds(self._connection, [marshal.dumps(header)], fds)
            except OSError as error:
                raise SlotLostError(f"the slot is gone ({error})") from error
            words = self._receive().decode(errors="replace").split(" ", 4)
            is_spent, returncode, seconds, stopped_for, control = words
            self.is_spent = is_spent == "1"
            said = _tail(stderr)
            if stopped_for == "threads":  # where the kernel limits them, the program meets an exception
                stopped_for, returncode, said = "", "1", f"RuntimeError: more than {MAX_THREADS} threads"
            return Trace(
                control=control,
                stopped_for=stopped_for,
                returncode=int(returncode),
                seconds=float(seconds),
                stdout=os.pread(stdout, limits.output_bytes + 1, 0),
                result=os.pread(result, max_result_bytes + 1, 0),
                stderr=said,
            )

    def close(self) -> None:
        """End the slot and the program that it may be running; one that is spent ends by itself and clears up."""
        self._connection.close()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                if not self.is_spent:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)

    def _receive(self) -> bytes:
        try:
            message = self._connection.recv(_MAX_ANSWER_BYTES)
        except OSError as error:
            raise SlotLostError(f"no answer from the slot ({error})") from error
        if not message:
            raise SlotLostError("the slot ended")
        return message


class Zygote:
    """A zygote process and its scratch folder.

    Args:
        flavour: what it has loaded.
    """

    def __init__(self, flavour: Flavour) -> None:
        """Start it and wait until it has tried out the isolation.

        Raises:
            SlotLostError: it could not start.
        """
        self._lock = threading.Lock()
        self._num_slots = 0
        self._folder = ScratchFolder()
        self._connection, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = self._start(inside)
        except OSError:
            self._connection.close()
            self._folder.remove()
            raise
        try:
            self._connection.settimeout(_START_S)
            self._connection.send(json.dumps(flavour.settings()).encode())
            self.layers: dict[str, str] = json.loads(self._connection.recv(_MAX_ANSWER_BYTES))
        except (OSError, ValueError) as error:
            self.close()
            raise SlotLostError(f"the zygote could not start ({error}); its error output is above") from error

    def _start(self, inside: socket.socket) -> subprocess.Popen[bytes]:
        # Symbols bound at the start, or every child binds them anew; and one thread: a library that starts more would
        # leave them behind at every fork.
        # One heap: each thread's own takes address space, by which memory is limited.
        names = ("LD_BIND_NOW", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX")
        fd = fcntl.fcntl(inside, fcntl.F_DUPFD_CLOEXEC, 3)  # those below are the zygote's standard streams
        inside.close()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_ZYGOTE), str(fd), self.scratch],
                stdin=subprocess.DEVNULL,  # can be read twice, and output cannot: so programs will find theirs
                stdout=subprocess.PIPE,
                stderr=inherited_stderr(),
                pass_fds=[fd, self._folder.fd],
                env=dict.fromkeys(names, "1"),
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(fd)
        assert process.stdout is not None
        process.stdout.close()
        return process

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def scratch(self) -> str:
        """Folder of the slots' scratch directories."""
        return self._folder.path

    def open_slot(self, scratch_bytes: int) -> Slot:
        """Start one more slot, with so much room for files.

        Raises:
            SlotRefusedError: no process was to be had.
            SlotLostError: the zygote is gone, or the slot could not get ready.
            OSError: no descriptor to be had here.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            self._num_slots += 1
            name = "mounted" if not self.layers["scratch"] else str(self._num_slots)
            request = {"folder": os.path.join(self.scratch, name), "scratch_bytes": scratch_bytes}
            try:
                socket.send_fds(self._connection, [json.dumps(request).encode()], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SlotLostError(f"the zygote is gone ({error})") from error
        try:
            return Slot(ours)
        except (SlotLostError, OSError):
            ours.close()
            raise

    def close(self) -> None:
        """End it; its slots and their programs end with it."""
        with contextlib.suppress(OSError):
            self._connection.send(b"")  # another process may hold a copy of the connection
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.remove()


def _tail(fd: int) -> str:
    size = os.fstat(fd).st_size
    if not size:
        return ""
    return os.pread(fd, _STDERR_TAIL_BYTES, max(0, size - _STDERR_TAIL_BYTES)).decode(errors="replace")
