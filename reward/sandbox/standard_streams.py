"""The standard streams of programs and zygotes, as the trusted process makes them.

Output is a pipe. Input is a file, as the judges have it that most programs are written for, which ask for its size
(`os.read(0, os.fstat(0).st_size)`) or read it twice; the kernel lets nobody wait for a file, so it is a pipe for
programs that seem to do that.
"""

import contextlib
import fcntl
import os
import re
import subprocess
import sys
from dataclasses import dataclass

_WAITS_FOR_INPUT = re.compile(r"\b(?:connect_read_pipe|add_reader|selectors|epoll)\b")
_MAX_PIPE_BYTES = 1 << 20  # what the kernel lets anybody have
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(slots=True, kw_only=True, frozen=True)
class StandardInput:
    """What a program can read, and how."""

    content: bytes
    as_pipe: bool  # where a pipe can hold it

    @classmethod
    def of(cls, text: str, code: str) -> "StandardInput":
        """The input for this program."""
        return cls(content=text.encode(errors="replace"), as_pipe=_WAITS_FOR_INPUT.search(code) is not None)

    def open(self, uid: int | None) -> int:
        """Return a descriptor to read it from; `uid` is a user who may open it by name, None: the own one."""
        if not self.as_pipe or len(self.content) > _MAX_PIPE_BYTES:
            return memory_file(self.content)
        reader, writer = _pipe(uid)
        try:
            os.set_blocking(writer, False)
            with contextlib.suppress(PermissionError):  # the user has many pipes
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, max(len(self.content), fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)))
            with contextlib.suppress(BlockingIOError):
                if os.write(writer, self.content) == len(self.content):
                    return reader
        finally:
            os.close(writer)
        os.close(reader)
        return memory_file(self.content)


def output_pipe(uid: int | None) -> tuple[int, int]:
    """Return reader and writer of a pipe, of which the reader never blocks; `uid` as above."""
    reader, writer = _pipe(uid)
    os.set_blocking(reader, False)
    return reader, writer


def memory_file(content: bytes | None) -> int:
    """A file in memory with this content, which nobody can change any more; None: an empty one to write to."""
    if content is None:
        return os.memfd_create("output", os.MFD_CLOEXEC)
    fd = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    offset = 0
    while offset < len(content):
        offset += os.pwrite(fd, view[offset:], offset)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def inherited_stderr() -> int:
    """What `subprocess` takes as standard error: that of this process, or nothing where it was closed.

    A descriptor 2 that was opened later is something else, and an interpreter without one cannot even do `input()`.
    """
    with contextlib.suppress(OSError):
        if sys.__stderr__ is not None and os.fstat(2):
            return 2
    return subprocess.DEVNULL


def _pipe(uid: int | None) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if uid is not None:
        os.fchown(reader, uid, -1)  # else `open("/dev/stdin")` would be refused
    return reader, writer
