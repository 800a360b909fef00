"""Linux system calls that the standard library does not offer, by ctypes; each raises OSError naming the call."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
SYS_LANDLOCK_CREATE_RULESET = 444  # these three have one number on every architecture
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
_syscall = _libc.syscall
_syscall.argtypes, _syscall.restype = (ctypes.c_long,), ctypes.c_long


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def syscall(name: str, number: int, *arguments: object) -> int:
    """Call the system call with this number."""
    return _checked(_syscall(number, *arguments), name)


def prctl(name: str, option: int, argument: int, pointer: object = None) -> None:
    """Set a property of this process."""
    _checked(_prctl(option, argument, pointer, 0, 0), name)


def end_with(parent: int) -> None:
    """Let the kernel end this process by SIGKILL when its parent ends; it may have ended already."""
    prctl("PDEATHSIG", PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def drop_capabilities() -> None:
    """Clear the permitted, effective and inheritable capabilities."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
