"""The layers around one sandboxed process, and how they are put on."""

import _socket
import contextlib
import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from os import _exit, close, getppid, setresuid
from resource import RLIM_INFINITY, getrlimit, setrlimit
from signal import SIGKILL

from reward.sandbox.jail import kernel, landlock, seccomp
from reward.sandbox.jail.kernel import PR_SET_PDEATHSIG, prctl
from reward.sandbox.jail.landlock import restrict_self
from reward.sandbox.jail.scratch import Scratch

# Without the first no program can be watched and ended; without the others a hostile one can reach the machine.
REQUIRED_LAYERS = ("supervision", "landlock", "seccomp")
_PACKAGES = {"site-packages", "dist-packages"}
_READABLE_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
MAX_THREADS = 128
NAMESPACES = sum(kernel.CLONE_NAMESPACES.values())
_ID_RANGE_LOW, _ID_RANGE_HIGH = 1 << 30, 1 << 31  # far from ids that anything else gives out


class Cell:
    """What the tests of one slot run in, one after the other.

    Args:
        scratch: empty at each start.
        uid: own user and group; None: the zygote's, where it is an ordinary user.
        ruleset: Landlock ruleset; None: without Landlock.
        filter: None: without seccomp.
        own_memory: bytes of address space that the zygote takes, which are not the program's.
        counts_threads: whether the slot limits the threads, as the kernel does not.
        fds: descriptors that a child needs to lock itself down and to import modules.
        claim: holds the uid as long as it is open.
    """

    __slots__ = ("claim", "counts_threads", "fds", "filter", "own_memory", "ruleset", "scratch", "uid")

    def __init__(
        self,
        *,
        scratch: Scratch,
        uid: int | None,
        ruleset: int | None,
        filter: seccomp.Filter | None,
        own_memory: int,
        counts_threads: bool,
        fds: list[int],
        claim: _socket.socket | None,
    ) -> None:
        """Keep the parts."""
        self.scratch, self.uid, self.ruleset, self.filter = scratch, uid, ruleset, filter
        self.own_memory, self.counts_threads, self.fds, self.claim = own_memory, counts_threads, fds, claim


def lock_slot_down(scratch: Scratch, uid: int | None) -> bool:
    """Put on the slot what its programs inherit; returns whether the kernel will limit their threads."""
    os.chdir(scratch.path)  # with the slot's rights: directories above may be closed to the sandbox's user
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
    else:
        kernel.drop_capabilities()  # those of a user namespace
    limits_threads = uid is not None or _nproc_counts_slot_only()
    if limits_threads:
        _lower(resource.RLIMIT_NPROC, MAX_THREADS)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NICE):
        _lower(kind, 0)
    kernel.prctl("DUMPABLE", kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl("NO_NEW_PRIVS", kernel.PR_SET_NO_NEW_PRIVS, 1)
    return limits_threads


def _nproc_counts_slot_only() -> bool:
    """Whether the limit of processes holds, and counts those of this process's user namespace alone.

    The kernel binds no process of the machine's root, and before 5.14 counts all processes of a user.
    """
    soft, hard = getrlimit(resource.RLIMIT_NPROC)
    try:
        return _can_fork_within(2, hard) and not _can_fork_within(1, hard)
    finally:
        setrlimit(resource.RLIMIT_NPROC, (soft, hard))


def _can_fork_within(num_processes: int, hard: int) -> bool:
    setrlimit(resource.RLIMIT_NPROC, (num_processes, hard))
    try:
        pid = kernel.fork()
    except BlockingIOError:
        return False
    if pid == 0:
        _exit(0)
    os.waitpid(pid, 0)
    return True


def rlimits(cell: Cell, limits: dict[str, float]) -> list[tuple[int, tuple[int, int]]]:
    """What `resource.setrlimit` sets for a program under these limits."""
    wanted = (
        # What the zygote has loaded is not the program's memory. The wall clock is the limit of time that counts.
        (resource.RLIMIT_AS, int(limits["memory_bytes"]) + cell.own_memory),
        (resource.RLIMIT_CPU, int(limits["test_s"]) + 2),
        (resource.RLIMIT_FSIZE, int(limits["file_bytes"])),
        (resource.RLIMIT_NOFILE, int(limits["open_files"])),
    )
    return [(kind, _lowered(kind, value)) for kind, value in wanted]


def lock_down(cell: Cell, rlimits: list[tuple[int, tuple[int, int]]], *, parent: int) -> None:
    """Put the remaining layers of the cell on this process, a child of the slot, for good.

    Raises:
        OSError: a layer did not take; nothing untrusted may run then.
    """
    for kind, soft_and_hard in rlimits:
        setrlimit(kind, soft_and_hard)
    if cell.uid is not None:
        setresuid(cell.uid, cell.uid, cell.uid)
    # After the change of user, which clears it.
    prctl("PDEATHSIG", PR_SET_PDEATHSIG, SIGKILL)
    if getppid() != parent:  # it ended before it could be watched
        _exit(1)
    if cell.ruleset is not None:
        restrict_self(cell.ruleset)
        close(cell.ruleset)
    if cell.filter is not None:
        cell.filter.install()


def become(uid: int) -> None:
    """Change user and group for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _lower(kind: int, value: int) -> None:
    resource.setrlimit(kind, _lowered(kind, value))


def _lowered(kind: int, value: int) -> tuple[int, int]:
    hard = getrlimit(kind)[1]
    lowered = value if hard == RLIM_INFINITY else min(value, hard)
    return lowered, lowered


def own_address_space() -> int:
    """Bytes of address space of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def readable_rules(folders: list[str]) -> Iterator[tuple[str, int]]:
    """Landlock rules for reading: the interpreter's folders without what is installed in them, harmless devices."""
    for folder in folders:
        if not any(os.path.isdir(path) and os.listdir(path) for path in _packages_in(folder)):
            yield folder, landlock.READ
            continue
        yield folder, landlock.READ_DIR
        for entry in set(os.listdir(folder)) - _PACKAGES:
            yield os.path.join(folder, entry), landlock.READ
    for device in _READABLE_DEVICES:
        yield device, landlock.DEVICE


def hide_packages(folders: list[str]) -> None:
    """Mount something empty over what is installed below the folders, but for what is itself one of them.

    Landlock can leave it out too, by a rule for every other entry, which makes the start of a program longer.
    """
    for path in [path for folder in folders for path in _packages_in(folder)]:
        if os.path.isdir(path) and not any(folder.startswith(f"{path}/") for folder in folders):
            flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
            kernel.mount("tmpfs", path, "tmpfs", flags, "")


def _packages_in(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in _PACKAGES]


def claim_uid() -> tuple[int, _socket.socket]:
    """Return a user id that no other slot of this machine has, and the socket whose name keeps it so.

    Raises:
        OSError: no id is free, or the user namespace has too few.
    """
    low, high = _id_range()
    for _ in range(100):
        uid = low + int.from_bytes(os.urandom(4), "little") % (high - low)
        claim = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            claim.bind(f"\0reward-sandbox-uid-{uid}")
        except OSError:  # taken
            claim.close()
            continue
        return uid, claim
    raise OSError(errno.EAGAIN, "no free user id for a sandbox")


def _id_range() -> tuple[int, int]:
    """Ids to choose from: high ones, or, in a user namespace with few, those near its end."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    inside, _, length = max(ranges, key=lambda row: row[2])
    if inside + length >= _ID_RANGE_HIGH:
        return _ID_RANGE_LOW, _ID_RANGE_HIGH
    if length < 4096:
        raise OSError(errno.EPERM, f"the user namespace has {length} user ids")
    return inside + length - 3000, inside + length - 1000


def kill_all_of(uid: int) -> None:
    """Kill every process of this user that the user may signal."""
    do_as(uid, lambda: os.kill(-1, signal.SIGKILL))


def do_as(uid: int | None, action: Callable[[], object]) -> None:
    """Do it in a child that becomes this user, whatever comes of it; None: do it here, with an OSError if it fails.

    The slot may have no right to do to others what they may do to themselves.
    """
    if uid is None:
        action()
        return
    pid = kernel.fork()
    if pid == 0:
        with contextlib.suppress(OSError):  # nothing is left to do it to
            become(uid)
            action()
        os._exit(0)
    os.waitpid(pid, 0)


def enter_namespaces(flags: int) -> None:
    """Move this process into namespaces of its own; a user namespace first if not root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        kernel.unshare(flags)
        return
    kernel.unshare(flags | kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
