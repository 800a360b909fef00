"""The trusted process's side of a slot, which starts the slot and sends it requests."""

import contextlib
import dataclasses
import fcntl
import importlib.util
import json
import marshal
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from reward.limits import Limits
from reward.sandbox.execution import Program
from reward.sandbox.jail.lockdown import MAX_THREADS
from reward.sandbox.jail.watch import MAX_QUEUED

_SLOT = Path(__file__).with_name("jail") / "slot.py"
_START_S = 120.0  # wall seconds for a slot to load its modules, on a machine busy with other starts
_GRACE_S = 5.0  # wall seconds beyond its deadlines after which a slot counts as stuck
_MAX_ANSWER_BYTES = 1 << 16
_STDERR_TAIL_BYTES = 4096
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# Symbols bound at the start, or every child binds them again; and one thread: a library that starts more would leave
# them behind at every fork. One heap: each thread's own takes address space, by which memory is limited.
_ENVIRONMENT = ("LD_BIND_NOW", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX")


# What slots have loaded: forking costs what is loaded, importing costs what is not.
_STANDARD = (  # what most answers to programming problems import; each more makes the end of every program longer
    "abc array bisect collections.abc contextlib copy ctypes datetime decimal enum fractions functools gc heapq io "
    "itertools json math operator os random re signal statistics string sys threading time types typing unicodedata"
)
_NUMPY = "numpy.fft numpy.lib.stride_tricks numpy.linalg numpy.ma numpy.polynomial numpy.random numpy"


class SlotLostError(Exception):
    """A slot did not answer, which is not the program's fault."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Trace:
    """All observations of one run."""

    control: str  # what the child reported before the code under test ran
    stopped_for: str  # why it was killed; empty: it ended by itself
    returncode: int  # exit status; negative: signal
    seconds: float  # time used: of all processors, or of the wall clock, divided by limits.wall_factor
    stdout: bytes  # at most one byte more than the limit
    result: bytes  # as above, of the limit of results
    stderr: str  # the last lines


class Slot:
    """A slot process and its scratch folder; used by one thread at a time."""

    def __init__(self, flavour: str) -> None:
        """Start the slot and wait until it has tried out the isolation.

        Raises:
            SlotLostError: the slot did not get ready.
            OSError: the machine has no process or descriptor left.
        """
        self._connection, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.scratch = tempfile.mkdtemp(prefix="sandbox-scratch-")
        try:
            self._process = self._start(inside)
        except OSError:
            self._connection.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
            raise
        try:
            self._connection.settimeout(_START_S)
            self._connection.send(json.dumps(_settings(flavour)).encode())
            hello = json.loads(self._receive())
        except (OSError, SlotLostError) as error:
            self.close()
            raise SlotLostError(f"a slot could not start ({error}); its error output is above") from error
        self.pid = self._process.pid
        self.uid: int | None = hello["uid"]
        self.layers: dict[str, str] = hello["layers"]  # by layer of isolation, "" where it works, else why not

    def _start(self, inside: socket.socket) -> subprocess.Popen[bytes]:
        with inside:
            fd = fcntl.fcntl(inside, fcntl.F_DUPFD_CLOEXEC, 3)  # those below are the slot's standard streams
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(_SLOT), str(fd), self.scratch],
                stdin=subprocess.DEVNULL,  # can be read twice, and output cannot: so programs will find theirs
                stdout=subprocess.PIPE,
                stderr=None if sys.__stderr__ else subprocess.DEVNULL,  # without one `input()` fails
                pass_fds=[fd],
                env=dict.fromkeys(_ENVIRONMENT, "1"),
                cwd="/",
                start_new_session=True,
            )
        finally:
            os.close(fd)
        assert process.stdout is not None
        process.stdout.close()
        return process

    def run(self, program: Program, limits: Limits, *, timeout_s: float) -> Trace:
        """Run a program once.

        Raises:
            SlotLostError: no answer in time, or no slot any more; the slot must be closed.
            OSError: the machine has no descriptor or memory left.
        """
        max_result_bytes = program.max_result_bytes(limits)
        # Marshal is safe in this direction only: what comes back from the child is JSON.
        call = (program.fn_name, program.arguments, program.is_tested)
        job = marshal.dumps((program.code, *call, max_result_bytes // 2))
        file_bytes = max(limits.file_bytes, max_result_bytes + 1)
        header = {**dataclasses.asdict(limits), "test_s": timeout_s, "file_bytes": file_bytes}
        with contextlib.ExitStack() as stack:

            def kept(fd: int) -> int:
                stack.callback(os.close, fd)
                return fd

            stdout, stderr, result = (kept(os.memfd_create("output", os.MFD_CLOEXEC)) for _ in range(3))
            stdin = kept(memory_file(program.stdin.encode(errors="replace")))
            reader, writer = map(kept, os.pipe2(os.O_CLOEXEC))
            os.set_blocking(reader, False)
            if self.uid is not None:  # the program may open it by name, as `/dev/stdout`
                os.fchown(reader, self.uid, -1)
            fds = [kept(memory_file(job)), stdin, stderr, result, stdout, reader, writer]
            self._connection.settimeout(limits.startup_s + timeout_s * limits.wall_factor * (1 + MAX_QUEUED) + _GRACE_S)
            try:
                socket.send_fds(self._connection, [marshal.dumps(header)], fds)
            except OSError as error:
                raise SlotLostError(f"the slot is gone ({error})") from error
            returncode, seconds, stopped_for, control = self._receive().decode(errors="replace").split(" ", 3)
            end = max(0, os.fstat(stderr).st_size - _STDERR_TAIL_BYTES)
            said = os.pread(stderr, _STDERR_TAIL_BYTES, end).decode(errors="replace")
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

    def end(self) -> None:
        """Kill the slot with its program and remove its scratch folder; a waiting caller gets a SlotLostError."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def close(self) -> None:
        """End the slot and close the connection; no caller may be waiting for an answer."""
        self.end()
        self._connection.close()

    def _receive(self) -> bytes:
        try:
            message = self._connection.recv(_MAX_ANSWER_BYTES)
        except OSError as error:
            raise SlotLostError(f"no answer from the slot ({error})") from error
        if not message:
            raise SlotLostError("the slot ended")
        return message


def flavour_of(code: str) -> str:
    """Return "numpy" for code that mentions numpy, if numpy is installed, else "standard"."""
    return "numpy" if "numpy" in code and _folder_of("numpy") is not None else "standard"


def _settings(flavour: str) -> dict[str, list[str]]:
    """Return a slot's settings for this flavour: modules to load, folders of modules, folders of time zones."""
    numpy = _folder_of("numpy") if flavour == "numpy" else None
    modules = f"{_STANDARD} {_NUMPY}" if numpy else _STANDARD
    zones = str(sysconfig.get_config_var("TZPATH")).split(os.pathsep)
    return {
        "modules": modules.split(),
        "folders": [sysconfig.get_path("stdlib"), *([numpy, f"{numpy}.libs"] if numpy else [])],
        "zones": [folder for folder in zones if os.path.isdir(folder)],
    }


def _folder_of(package: str) -> str | None:
    """Return the folder of the package, or None."""
    with contextlib.suppress(ValueError, ImportError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            return os.path.dirname(spec.origin)
    return None


def memory_file(content: bytes) -> int:
    """Return a file in memory with this content, which nobody can change any more."""
    fd = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view, offset = memoryview(content), 0
    while offset < len(content):
        offset += os.pwrite(fd, view[offset:], offset)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd
