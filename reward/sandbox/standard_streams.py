"""The standard streams of programs and zygotes, as the trusted process makes them: pipes, as a bare subprocess has."""

import contextlib
import fcntl
import os
import subprocess
import sys

_MAX_PIPE_BYTES = 1 << 20  # what the kernel lets anybody have
# Of output: all programs of a user share 64 MiB of pipes, beyond which the kernel makes every new one tiny.
_OUTPUT_PIPE_BYTES = 1 << 18
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def input_stream(content: bytes, uid: int | None) -> int:
    """Descriptor of a pipe that holds the content and ends there; of a file in memory where no pipe can hold so much.

    Args:
        content: all that the program can read.
        uid: user who may open it by name; None: the own one.
    """
    if len(content) > _MAX_PIPE_BYTES:
        return memory_file(content)
    reader, writer = _pipe(uid, len(content))
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            if os.write(writer, content) == len(content):
                return reader
    finally:
        os.close(writer)
    os.close(reader)
    return memory_file(content)


def output_pipe(uid: int | None) -> tuple[int, int]:
    """Reader and writer of a pipe, of which the reader never blocks; `uid` as above."""
    reader, writer = _pipe(uid, _OUTPUT_PIPE_BYTES)
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


def zygote_stderr() -> int:
    """What `subprocess` takes as standard error: that of this process, or nothing where it was closed.

    A descriptor 2 that was opened later is something else, and an interpreter without one cannot even do `input()`.
    """
    with contextlib.suppress(OSError):
        if sys.__stderr__ is not None and os.fstat(2):
            return 2
    return subprocess.DEVNULL


def _pipe(uid: int | None, num_bytes: int) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    if uid is not None:
        os.fchown(reader, uid, -1)  # else `open("/dev/stdin")` would be refused
    if num_bytes > fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ):
        with contextlib.suppress(PermissionError):  # the user has many pipes
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, num_bytes)
    return reader, writer
