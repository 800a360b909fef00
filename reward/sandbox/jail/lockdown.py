"""The layers around one sandboxed process: how they are put on, and which of them work on this machine."""

import _socket
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator

from reward.sandbox.jail import kernel, landlock, seccomp
from reward.sandbox.jail.watch import Clock

LAYERS = ("supervision", "uid", "landlock", "seccomp")
# Without the first no program can be watched and ended; without the others a hostile one can reach the machine.
REQUIRED_LAYERS = ("supervision", "landlock", "seccomp")
MAX_THREADS = 128
_PACKAGES = {"site-packages", "dist-packages"}
_READABLE_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
_ID_RANGE_LOW, _ID_RANGE_HIGH = 1 << 30, 1 << 31  # far from ids that anything else gives out
_SPARE_CPU_S = 2  # beyond the limit of time, which the slot looks after
_TRIAL_LIMITS = {"memory_bytes": 1 << 30, "test_s": 1.0, "file_bytes": 1 << 20, "open_files": 64}
_END_MS = 10_000  # for a killed child to end
# What the child must not be able to do once the layer is on it.
_FORBIDDEN: dict[str, Callable[[], object]] = {"landlock": lambda: os.listdir("/"), "seccomp": os.fork}


class Cell:
    """The restrictions under which the programs of one slot run, one after the other.

    Args:
        scratch: the directory in which they may write; absolute.
        layers: the layers that work on this machine.
        folders: the folders that they may read.
        fds: descriptors of folders that they import from.
    """

    def __init__(self, *, scratch: str, layers: list[str], folders: list[str], fds: list[int]) -> None:
        """Prepare what every program of the slot shares, or raise OSError."""
        self.scratch, self.fds = scratch, list(fds)
        self.uid: int | None = None  # own user and group; None: the slot's
        self.ruleset: int | None = None
        if "uid" in layers:
            self.uid = own_uid()
            # Not the program's own directory: it cannot change its mode.
            os.chown(scratch, 0, self.uid)
            os.chmod(scratch, 0o770)
        if "landlock" in layers:
            self.ruleset = landlock.create_ruleset([*readable_rules(folders), (scratch, landlock.SCRATCH)])
            self.fds.append(self.ruleset)
        self.filter = seccomp.programs_filter() if "seccomp" in layers else None
        # What the slot has loaded is not the program's memory.
        self.own_memory = own_address_space()
        os.chdir(scratch)  # with the slot's rights: directories above may be closed to the sandbox's user

    def lock_down(self, limits: dict[str, float], *, parent: int) -> None:
        """Put this process, a child of the slot, into the cell for good.

        Raises:
            OSError: a layer could not be applied; nothing untrusted may run then.
        """
        for kind, value in (
            (resource.RLIMIT_AS, int(limits["memory_bytes"]) + self.own_memory),
            (resource.RLIMIT_CPU, int(limits["test_s"]) + _SPARE_CPU_S),
            (resource.RLIMIT_FSIZE, int(limits["file_bytes"])),
            (resource.RLIMIT_NOFILE, int(limits["open_files"])),
            *((kind, 0) for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE)),
        ):
            _lower(kind, value)
        if self.uid is None:
            kernel.drop_capabilities()
        else:
            _lower(resource.RLIMIT_NPROC, MAX_THREADS)
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        kernel.prctl("DUMPABLE", kernel.PR_SET_DUMPABLE, 0)
        kernel.end_with(parent)  # after the change of user, which clears that
        kernel.prctl("NO_NEW_PRIVS", kernel.PR_SET_NO_NEW_PRIVS, 1)
        if self.ruleset is not None:
            landlock.restrict_self(self.ruleset)
            os.close(self.ruleset)
        if self.filter is not None:
            seccomp.install(self.filter)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    lowered = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowered, lowered))


def own_address_space() -> int:
    """Return the bytes of address space that this process uses."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def readable_rules(folders: list[str]) -> Iterator[tuple[str, int]]:
    """Yield Landlock's rules for reading: the interpreter's folders without installed packages, harmless devices."""
    for folder in folders:
        if not any(os.path.isdir(path) and os.listdir(path) for path in (f"{folder}/{name}" for name in _PACKAGES)):
            yield folder, landlock.READ
            continue
        yield folder, landlock.READ_DIR
        for entry in set(os.listdir(folder)) - _PACKAGES:
            yield os.path.join(folder, entry), landlock.READ
    for device in _READABLE_DEVICES:
        yield device, landlock.DEVICE


def own_uid() -> int:
    """Return a user id for the programs of this slot alone: a high one, or one near a small user namespace's end.

    Slots of other containers may have the same id; they cannot see each other. OSError if the namespace has too few.
    """
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    inside, _, length = max(ranges, key=lambda row: row[2])
    if inside + length >= _ID_RANGE_HIGH:
        return _ID_RANGE_LOW + os.getpid()
    if length < 4096:
        raise OSError(errno.EPERM, f"the user namespace has {length} user ids")
    return inside + length - 3000 + os.getpid() % 2000


def try_layers(scratch: str, folders: list[str]) -> dict[str, str]:
    """Return for each layer "" if it works, else the reason why it does not; layers are tried in an empty folder."""
    reasons = {name: _try(name, scratch, folders) for name in LAYERS}
    if os.geteuid() != 0:
        reasons["uid"] = "not root: programs run as the user who started them"
    elif reasons["uid"]:
        reasons["uid"] += ": programs run as root"
    return reasons


def _try(name: str, scratch: str, folders: list[str]) -> str:
    ours, childs = _socket.socketpair()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            ours.close()
            childs.send(_put_on(name, scratch, folders, parent).encode())
            childs.recv(1)  # until this process has ended it, or gives up
        finally:
            os._exit(1)
    childs.close()
    try:
        reason = ours.recv(1 << 12).decode() or "the trial ended without an answer"
        pidfd, waiting = os.pidfd_open(pid), select.poll()
        waiting.register(pidfd, select.POLLIN)
        Clock(pid=pid, wall_factor=1.0).used_s(time.monotonic(), 0.0)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not waiting.poll(_END_MS):
            return "a killed child does not end"
        os.close(pidfd)
        return "" if reason == "works" else reason
    except OSError as error:
        return f"a child cannot be ended: {error}"
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _put_on(name: str, scratch: str, folders: list[str], parent: int) -> str:
    try:
        cell = Cell(scratch=scratch, layers=[name], folders=folders, fds=[])
        cell.lock_down(_TRIAL_LIMITS, parent=parent)
    except Exception as error:  # whatever it is, the layer does not work here
        return str(error) or type(error).__name__
    if name not in _FORBIDDEN:
        return "works"
    try:
        _FORBIDDEN[name]()
    except PermissionError:
        return "works"
    return "had no effect"
