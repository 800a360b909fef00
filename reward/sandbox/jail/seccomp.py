"""The seccomp filters: which system calls a slot and, further, a sandboxed process may make.

A list of what is allowed. What is not answers EPERM, so that a program meets an exception and not a sudden death. The
kernel tries a filter on every call number when it is installed, which is a good part of a run: the slot's filter, which
its programs inherit, refuses most, and a program's own filter only what slots need.
"""

import ctypes
import errno
import os
import struct
from os import getpid
from struct import pack_into

from reward.sandbox.jail import system_calls as calls
from reward.sandbox.jail.kernel import PR_SET_PDEATHSIG, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, prctl

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32_BIT = 0x40000000
_KILL_PROCESS, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x15, 0x35, 0x45
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16
_MAX_SHORT_JUMP = 255

_CLONE_THREAD = 0x00010000
# Those of glibc's and musl's threads and forks exactly: a thread with a table of descriptors of its own has a limit of
# its own.
_CLONE_FLAGS = (0x3D0F00, 0x7D0F00, 0x1200011, 0x11)
_O_ACCMODE, _O_TRUNC, _O_TMPFILE = 0o3, 0o1000, 0o20000000
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
_AF_UNIX, _SOCK_STREAM, _SOCK_FLAGS = 1, 1, 0o2004000
_CLOSE_RANGE_CLOEXEC = 4
_PRIO_PROCESS = 0
_ADVICE_TO_PAGE_OUT = (20, 21)
_FIRST_CPU_CLOCK, _CLOCK_OF_THREAD = 0x80000000, 0x4
# F_DUPFD to F_SETFL, F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. No signal to others
# when a file is ready, no larger pipe, no look at locks: others may have them on files of the library.
_FCNTLS = (*range(5), 6, 7, 37, 38, 1030, 1032)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS, PR_SET_VMA.
_PRCTLS = (2, 3, 15, 16, 21, 39, 0x53564D41)
_PRCTLS_OF_START = (PR_SET_PDEATHSIG, PR_SET_SECCOMP)
_OWN_PID = 0x7FFFFFFF  # stands for the process's own id until the filter is installed; no process has it


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


_ALLOWED = _instruction(_RETURN, _ALLOW)


def _refused(error: int = errno.EPERM) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _load(argument: int, *, half: int = 0) -> bytes:
    return _instruction(_LOAD, _OFFSET_ARGUMENTS + 8 * argument + 4 * half)


def _if_one_of(values: tuple[int, ...], hit: bytes = _ALLOWED, miss: bytes | None = None) -> bytes:
    """What ends the call one way if what was loaded is one of the values, else the other way, by default refused."""
    jumps = [_instruction(_JUMP_EQUAL, value, len(values) - at) for at, value in enumerate(values)]
    return b"".join(jumps) + (miss or _refused()) + hit


def _if_opened_as_landlock_governs() -> bytes:
    """Check the flags of an open: Landlock asks nothing of some, before its version 3 or at all.

    These truncate a file opened for reading, name no way of access, or make a file without a name, which nobody counts.
    """
    program = _instruction(_JUMP_ANY_BIT, _O_TMPFILE, 0, 1) + _refused(errno.EOPNOTSUPP)
    program += _instruction(_AND, _O_ACCMODE | _O_TRUNC)
    return program + _if_one_of((0, 1, 2, _O_TRUNC | 1, _O_TRUNC | 2))


def _search(starts: list[tuple[int, bytes]]) -> bytes:
    """What finds, by halving, the last of the sorted starts that the call's number reaches, and ends the call so."""
    if len(starts) == 1:
        return starts[0][1]
    middle = len(starts) // 2
    below, above = _search(starts[:middle]), _search(starts[middle:])
    distance = len(below) // 8
    if distance <= _MAX_SHORT_JUMP:
        return _instruction(_JUMP_AT_LEAST, starts[middle][0], distance) + below + above
    far = _instruction(_JUMP_AT_LEAST, starts[middle][0], 0, 1) + _instruction(_JUMP, distance)
    return far + below + above


def _by_number(ends: dict[int, bytes], otherwise: bytes) -> bytes:
    """What ends a call by its number, which is loaded; numbers not given end otherwise."""
    starts = [(0, otherwise)]
    for number in sorted(ends):
        starts += [(number, ends[number]), (number + 1, otherwise)]
    last_of_number = dict(starts)
    merged = [(0, last_of_number.pop(0))]
    merged += [(number, end) for number, end in sorted(last_of_number.items())]
    return _search([start for at, start in enumerate(merged) if not at or start[1] != merged[at - 1][1]])


def _slot_program() -> bytes:
    allowed = " ".join([*calls.ALLOWED.values(), calls.ONLY_SLOTS])
    ends = dict.fromkeys(calls.numbers(allowed), _ALLOWED)
    ends[calls.OPEN] = _load(1) + _if_opened_as_landlock_governs()
    ends[calls.OPENAT] = _load(2) + _if_opened_as_landlock_governs()
    # Shared memory stays filled when it is unmapped in part, where no limit counts it.
    either = (0, _MAP_SHARED, _MAP_ANONYMOUS)
    ends[calls.MMAP] = _load(3) + _instruction(_AND, _MAP_SHARED | _MAP_ANONYMOUS) + _if_one_of(either)
    ends[calls.IOCTL] = _load(1) + _if_one_of(_IOCTLS)
    ends[calls.FCNTL] = _load(1) + _if_one_of(_FCNTLS)
    ends[calls.PRCTL] = _load(0) + _if_one_of((*_PRCTLS, *_PRCTLS_OF_START))
    ends[calls.CLONE] = _load(0) + _if_one_of(_CLONE_FLAGS)
    ends[calls.CLOSE_RANGE] = _load(2) + _if_one_of((0, _CLOSE_RANGE_CLOEXEC))
    # A pair of streams only: a datagram socket can be sent from to any address.
    stream = _load(1) + _instruction(_AND, ~_SOCK_FLAGS & 0xFFFFFFFF) + _if_one_of((_SOCK_STREAM,))
    ends[calls.SOCKETPAIR] = _load(0) + _if_one_of((_AF_UNIX,), hit=stream)
    ends[calls.SENDTO] = _load(4) + _if_one_of((0,), hit=_load(4, half=1) + _if_one_of((0,)))
    # What of a file is in memory is no program's to see or to change: it would outlive the program.
    ends[calls.FADVISE64] = _refused(0)  # advice, not taken
    ends[calls.MADVISE] = _load(2) + _if_one_of(_ADVICE_TO_PAGE_OUT, hit=_refused(errno.EINVAL), miss=_ALLOWED)
    ends[calls.PREADV2] = ends[calls.PWRITEV2] = _load(5) + _if_one_of((0,), miss=_refused(errno.EOPNOTSUPP))
    ends.update(dict.fromkeys((calls.KILL, calls.TGKILL, calls.PRLIMIT64), _ALLOWED))
    # The C library takes another way on these: clone, whose flags a filter can read; openat; writing.
    ends.update(dict.fromkeys((calls.CLONE3, calls.OPENAT2), _refused(errno.ENOSYS)))
    ends[calls.FALLOCATE] = _refused(errno.EOPNOTSUPP)
    program = _instruction(_LOAD, _OFFSET_ARCH)
    program += _instruction(_JUMP_EQUAL, _AUDIT_ARCH_X86_64, 1) + _instruction(_RETURN, _KILL_PROCESS)
    program += _instruction(_LOAD, _OFFSET_NUMBER)
    program += _instruction(_JUMP_AT_LEAST, _X32_BIT, 0, 1) + _instruction(_RETURN, _KILL_PROCESS)
    program += _instruction(_JUMP_AT_LEAST, calls.NEWEST_KNOWN + 1, 0, 1) + _refused(errno.ENOSYS)
    return program + _by_number(ends, otherwise=_refused())


def _own_program() -> bytes:
    """A program's own filter, of what the slot's lets through."""
    ends = dict.fromkeys(calls.numbers(calls.ONLY_SLOTS), _refused())
    thread = _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, 1) + _refused() + _ALLOWED
    ends[calls.CLONE] = _load(0) + thread
    ends[calls.PRCTL] = _load(0) + _if_one_of(_PRCTLS_OF_START, hit=_refused(), miss=_ALLOWED)
    ends[calls.KILL] = _load(0) + _if_one_of((_OWN_PID, 0))
    ends[calls.TGKILL] = _load(0) + _if_one_of((_OWN_PID,))
    # `os.nice(0)`, or to be even nicer.
    ends[calls.SETPRIORITY] = _load(0) + _if_one_of((_PRIO_PROCESS,), hit=_load(1) + _if_one_of((_OWN_PID, 0)))
    ends[calls.PRLIMIT64] = _load(0) + _if_one_of((_OWN_PID, 0))
    # Clocks by number and of own threads: that of another process, as of a judge, would tell what it does.
    clock = _load(0) + _instruction(_JUMP_AT_LEAST, _FIRST_CPU_CLOCK, 1) + _ALLOWED
    clock += _instruction(_JUMP_ANY_BIT, _CLOCK_OF_THREAD, 1) + _refused(errno.EINVAL) + _ALLOWED
    ends.update(dict.fromkeys((calls.CLOCK_GETTIME, calls.CLOCK_GETRES, calls.CLOCK_NANOSLEEP), clock))
    return _instruction(_LOAD, _OFFSET_NUMBER) + _by_number(ends, otherwise=_ALLOWED)


class Filter:
    """The filters of a slot and of its programs, assembled once; the latter is finished in each process.

    Raises:
        OSError: the processor is not x86_64, the only one whose call numbers are known here.
    """

    def __init__(self) -> None:
        """Assemble what every process shares."""
        if os.uname().machine != "x86_64":
            raise OSError(errno.ENOSYS, f"no list of system calls for {os.uname().machine}")
        program = _own_program()
        own_pid = struct.pack("=I", _OWN_PID)
        self._offsets = [at for at in range(4, len(program), 8) if program[at : at + 4] == own_pid]
        self._program = ctypes.create_string_buffer(program, len(program))
        self._header = _header(self._program)
        program = _slot_program()
        self._slots_program = ctypes.create_string_buffer(program, len(program))

    def install_in_slot(self) -> None:
        """Refuse to this process and its children what no slot needs; they must have no_new_privs."""
        prctl("SECCOMP", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, _header(self._slots_program))

    def install(self) -> None:
        """Put this process, a child of the slot, under the rest of the filter for good."""
        pid = getpid()
        for offset in self._offsets:
            pack_into("=I", self._program, offset, pid)
        prctl("SECCOMP", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, self._header)


def _header(program: ctypes.Array) -> ctypes.c_char_p:
    """The structure that the kernel wants: number of instructions, and where they are."""
    return ctypes.c_char_p(struct.pack("@HP", len(program) // 8, ctypes.addressof(program)))
