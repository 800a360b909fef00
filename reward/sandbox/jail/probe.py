"""Which layers of isolation work on this machine, found out by trying each in a throw-away child."""

import _socket
import errno
import os
import resource
import select
import signal
import time
from collections.abc import Callable

from reward.sandbox.jail import kernel, landlock, lockdown, scratch, seccomp
from reward.sandbox.jail.clock import Clock

_END_MS = 10_000  # for a killed child to end


def try_layers(scratch_folder: str, folders: list[str]) -> dict[str, str]:
    """Try each layer.

    Args:
        scratch_folder: empty.
        folders: what programs may read.

    Returns:
        By layer, "" where it works, else the reason why it does not.
    """
    attempts = {
        "supervision": _try_supervision,
        "uid": lambda: _try_uid(scratch_folder),
        "landlock": lambda: _try_landlock(folders),
        "seccomp": _try_seccomp,
        "namespaces": _try_namespaces,
        "scratch": lambda: _try_scratch(scratch_folder),
    }
    return {name: _in_throw_away_child(attempt) for name, attempt in attempts.items()}


def _try_supervision() -> str:
    lockdown.own_address_space()
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        pidfd = os.pidfd_open(pid)
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        if waiting.poll(0):
            return "a living child seems to have ended"
        Clock(pid=pid, pidfd=pidfd, started=time.monotonic(), wall_factor=1.0).pace()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return "" if waiting.poll(_END_MS) else "a killed child does not end"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _try_uid(scratch_folder: str) -> str:
    if os.geteuid() != 0:
        return "not root: programs run as the user who started them"
    try:
        uid, _ = lockdown.claim_uid()
        os.chown(scratch_folder, 0, uid)
        _end_child_of(uid)
        lockdown.become(uid)
    except OSError as error:
        return f"{error}: programs run as root"
    return "" if os.getresuid() == (uid, uid, uid) else "the change of user had no effect: programs run as root"


def _end_child_of(uid: int) -> None:
    """Start a child that becomes this user, and kill it.

    Raises:
        OSError: either is not permitted.
    """
    ours, childs = _socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            lockdown.become(uid)
            childs.send(b"ready")
            childs.recv(1)  # until it is killed, or given up
        finally:
            os._exit(1)
    childs.close()
    try:
        if not ours.recv(9):
            raise OSError(errno.EPERM, "no child may change its user")
        signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL)
    except PermissionError as error:
        raise PermissionError(errno.EPERM, "another user's process cannot be ended") from error
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _try_landlock(folders: list[str]) -> str:
    ruleset = landlock.create_ruleset(lockdown.readable_rules(folders))
    kernel.prctl("NO_NEW_PRIVS", kernel.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict_self(ruleset)
    return _is_refused(lambda: os.listdir("/"), errno.EACCES)


def _try_seccomp() -> str:
    sandbox_filter = seccomp.Filter()
    kernel.prctl("NO_NEW_PRIVS", kernel.PR_SET_NO_NEW_PRIVS, 1)
    sandbox_filter.install_in_slot()
    sandbox_filter.install()
    return _is_refused(_socket.socket, errno.EPERM) or _is_refused(os.fork, errno.EPERM)


def _try_namespaces() -> str:
    lockdown.enter_namespaces(lockdown.NAMESPACES)
    return ""


def _try_scratch(folder: str) -> str:
    lockdown.enter_namespaces(kernel.CLONE_NEWNS)
    scratch.mount(folder, 0, "mode=700")
    with open(os.path.join(folder, "trial"), "wb", buffering=0) as file:
        file.write(bytes(resource.getpagesize()))
        return _is_refused(lambda: file.write(b"x"), errno.ENOSPC)


def _is_refused(action: Callable[[], object], error_number: int) -> str:
    try:
        action()
    except OSError as error:
        if error.errno == error_number:
            return ""
        return f"had another effect: {error}"
    return "had no effect"


def _in_throw_away_child(action: Callable[[], str]) -> str:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            reason = action()
        except Exception as error:  # whatever it is, the layer does not work here
            reason = str(error) or type(error).__name__
        os.write(writer, (reason or "works").encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        reason = file.read().decode()
    os.waitpid(pid, 0)
    if not reason:
        return "the trial ended without an answer"
    return "" if reason == "works" else reason
