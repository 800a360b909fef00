"""The seccomp filter: which system calls a sandboxed process may make.

The filter lists the calls that are allowed. Any other call is refused with an error, so that a program gets an
exception and is not killed; only calls of another architecture end it.
"""

import ctypes
import errno
import os
import struct

from reward.sandbox.jail import system_calls
from reward.sandbox.jail.kernel import PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl

_X32_BIT = 0x40000000
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x15, 0x35, 0x45
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16

# Those of glibc's and musl's threads exactly: a thread with a table of descriptors of its own has a limit of its own.
_FLAGS_OF_THREADS = (0x3D0F00, 0x7D0F00)
_O_ACCMODE, _O_TRUNC, _O_TMPFILE = 0o3, 0o1000, 0o20000000
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_AF_UNIX, _SOCK_STREAM, _SOCK_FLAGS = 1, 1, 0o2004000
_CLOSE_RANGE_CLOEXEC = 4
_ADVICE_TO_PAGE_OUT = (20, 21)
_FIRST_CPU_CLOCK, _CLOCK_OF_THREAD = 0x80000000, 0x4
# F_DUPFD to F_SETFL, F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. No signal to others
# when a file is ready, no larger pipe, no look at locks: others may have them on files of the library.
_FCNTLS = (*range(5), 6, 7, 37, 38, 1030, 1032)
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
# PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS, PR_SET_VMA.
_PRCTLS = (2, 3, 15, 16, 21, 39, 0x53564D41)
_OWN_PID = 0x7FFFFFFF  # stands for the process's own id until the filter is installed; no process has it


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction of a filter."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


_ALLOWED = instruction(_RETURN, _ALLOW)
_KILLED = instruction(_RETURN, _KILL_PROCESS)


def _refused(error: int = errno.EPERM) -> bytes:
    return instruction(_RETURN, _ERRNO | error)


def _load(argument: int, *, half: int = 0) -> bytes:
    return instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * argument + 4 * half)


def _if_one_of(values: tuple[int, ...], hit: bytes = _ALLOWED, miss: bytes | None = None) -> bytes:
    """Return instructions that end with `hit` if the loaded value is one of `values`, else with `miss` (refusal)."""
    miss = miss or _refused()
    jumps = [instruction(_JUMP_EQUAL, value, len(values) - 1 - at + len(miss) // 8) for at, value in enumerate(values)]
    return b"".join(jumps) + miss + hit


def _if_opened_as_landlock_governs() -> bytes:
    """Return instructions that check the flags of an open, because Landlock does not govern all of them.

    Refused are flags that truncate a file opened for reading (Landlock governs these from version 3), that name no
    mode of access, or that make a file without a name, which the slot would not count.
    """
    program = instruction(_JUMP_ANY_BIT, _O_TMPFILE, 0, 1) + _refused(errno.EOPNOTSUPP)
    program += instruction(_AND, _O_ACCMODE | _O_TRUNC)
    return program + _if_one_of((0, 1, 2, _O_TRUNC | 1, _O_TRUNC | 2))


def _by_arguments() -> dict[str, bytes]:
    """Return the instructions for the calls that are allowed or refused by their arguments."""
    # A pair of streams only: a datagram socket can be sent from to any address.
    stream = _load(1) + instruction(_AND, ~_SOCK_FLAGS & 0xFFFFFFFF) + _if_one_of((_SOCK_STREAM,))
    # Clocks by number and of own threads: that of another process, as of a judge, would tell what it does.
    clock = _load(0) + instruction(_JUMP_AT_LEAST, _FIRST_CPU_CLOCK, 1) + _ALLOWED
    clock += instruction(_JUMP_ANY_BIT, _CLOCK_OF_THREAD, 1) + _refused(errno.EINVAL) + _ALLOWED
    # Shared memory stays filled when it is unmapped in part, where no limit counts it.
    mappings = (0, _MAP_SHARED, _MAP_ANONYMOUS)
    with_flags = _load(5) + _if_one_of((0,), miss=_refused(errno.EOPNOTSUPP))
    return {
        "open": _load(1) + _if_opened_as_landlock_governs(),
        "openat": _load(2) + _if_opened_as_landlock_governs(),
        "mmap": _load(3) + instruction(_AND, _MAP_SHARED | _MAP_ANONYMOUS) + _if_one_of(mappings),
        "ioctl": _load(1) + _if_one_of(_IOCTLS),
        "fcntl": _load(1) + _if_one_of(_FCNTLS),
        "prctl": _load(0) + _if_one_of(_PRCTLS),
        "clone": _load(0) + _if_one_of(_FLAGS_OF_THREADS),
        "close_range": _load(2) + _if_one_of((0, _CLOSE_RANGE_CLOEXEC)),
        "socketpair": _load(0) + _if_one_of((_AF_UNIX,), hit=stream),
        "sendto": _load(4) + _if_one_of((0,), hit=_load(4, half=1) + _if_one_of((0,))),
        "kill": _load(0) + _if_one_of((_OWN_PID, 0)),
        "tgkill": _load(0) + _if_one_of((_OWN_PID,)),
        "prlimit64": _load(0) + _if_one_of((_OWN_PID, 0)),
        # What of a file is in memory is no program's to see or to change: it would outlive the program.
        "fadvise64": _refused(0),  # advice, not taken
        "madvise": _load(2) + _if_one_of(_ADVICE_TO_PAGE_OUT, hit=_refused(errno.EINVAL), miss=_ALLOWED),
        "preadv2": with_flags,
        "pwritev2": with_flags,
        "fallocate": _refused(errno.EOPNOTSUPP),  # the C library writes instead
        **dict.fromkeys(("clock_gettime", "clock_getres", "clock_nanosleep"), clock),
    }


def programs_filter(machine: str = os.uname().machine) -> bytes:
    """Return the filter to install in each process; OSError if a machine's numbers of system calls are unknown."""
    if machine not in system_calls.ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}")
    program = instruction(_LOAD, _OFFSET_ARCH)
    program += _if_one_of((system_calls.ARCHITECTURES[machine],), hit=b"", miss=_KILLED)
    program += instruction(_LOAD, _OFFSET_NUMBER) + instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1) + _KILLED
    ends = _by_arguments()
    for name, number in system_calls.numbers(system_calls.ALLOWED_BY_ARGUMENTS, machine).items():
        program += instruction(_JUMP_EQUAL, number, 0, len(ends[name]) // 8) + ends[name]
    # On this answer the C library takes the older way: clone in place of clone3, openat in place of openat2.
    newer = instruction(_JUMP_AT_LEAST, system_calls.FIRST_COMMON, 0, 1) + _refused(errno.ENOSYS) + _refused()
    return program + _if_one_of(tuple(system_calls.numbers(system_calls.ALLOWED, machine).values()), miss=newer)


def install(program: bytes) -> None:
    """Put this process, which must have no_new_privs, under the filter for good."""
    program = program.replace(struct.pack("=I", _OWN_PID), struct.pack("=I", os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))
    # The structure that the kernel wants: number of instructions, and where they are.
    header = ctypes.c_char_p(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    prctl("SECCOMP", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header)
