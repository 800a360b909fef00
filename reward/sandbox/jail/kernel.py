"""Linux system calls that the standard library does not offer, by ctypes; each raises OSError naming the call."""

import ctypes
import os

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
SYS_LANDLOCK_CREATE_RULESET = 444  # these three have one number on every architecture
SYS_LANDLOCK_ADD_RULE = 445
SYS_LANDLOCK_RESTRICT_SELF = 446
_CAPABILITY_VERSION_3 = 0x20080522

CLONE_NAMESPACES = {"net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000}
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REC, MS_SLAVE = 1 << 14, 1 << 19

_libc = ctypes.CDLL(None, use_errno=True)
_libc_under_gil = ctypes.PyDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
_fork = _libc_under_gil.fork
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


def fork() -> int:
    """Fork a process that has one thread, without what Python does after `os.fork` for those that have more.

    That touches a hundred pages, which the child then copies: it takes longer than all else before a program runs.
    """
    return _checked(_fork(), "fork")


def prctl(name: str, option: int, argument: int, pointer: object = None) -> None:
    """Set a property of this process."""
    _checked(_prctl(option, argument, pointer, 0, 0), name)


def unshare(flags: int) -> None:
    """Leave the namespaces named by the flags for new ones."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """Mount a file system, or change a mount."""
    words = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(_libc.mount(*words), "mount")


def drop_capabilities() -> None:
    """Clear the permitted, effective and inheritable capabilities."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    syscall("capset", SYS_CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)())
