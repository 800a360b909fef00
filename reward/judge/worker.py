"""A judge is the process `python -I -S worker.py CONNECTION_FD`, which starts with an empty environment.

It forks a child for each question, until the trusted process closes the connection or ends. The child is confined and
limited: it alone reads what answers wrote, and if such a text takes the child over, that ends with the question.
"""

import contextlib
import functools
import gc
import json
import math
import os
import resource
import signal
import site
import sys
import sysconfig
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NoReturn

_CHECK_PARENT_S = 1.0
_MAX_DETAIL = 300  # characters
_MAX_BYTES = 1 << 27  # of a reply, or of a call's arguments
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
_PACKAGES = ("site-packages", "dist-packages")


def main() -> None:
    """Answer questions until the connection closes, or the trusted process has ended."""
    connection = Connection(int(sys.argv[1]))
    trusted = os.getppid()
    root, *paths = connection.recv()
    sys.path.append(root)
    import reward.sandbox.jail.lockdown  # noqa: F401  # now: elsewhere there may be a module of the user's of this name

    sys.path[:] = [*paths, root]
    sys.set_int_max_str_digits(0)  # the limit here is time
    for set_names in (site.setquit, site.setcopyright, site.sethelper):  # `exit` is no name of the answer's
        set_names()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        # Others may hold a copy of the connection's other end, so that it does not close with the trusted process.
        while not connection.poll(_CHECK_PARENT_S):
            if os.getppid() != trusted:
                return
        load, question, calls_back, cpu_s, num_bytes = connection.recv()
        channel = Connection(recv_handle(connection))
        if load is not None:
            with contextlib.suppress(Exception):  # the question will meet it again
                load()
            with contextlib.suppress(OSError):
                _filter()  # built here, once: that takes longer than most questions
        gc.disable()
        gc.freeze()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            connection.close()
            _answer_and_end(
                question, channel, parent, cpu_s, num_bytes, calls_back=calls_back, confined=load is not None
            )
        channel.close()
        while True:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                break
            if os.getppid() != trusted:
                return  # the kernel ends the child
            signal.sigtimedwait({signal.SIGCHLD}, _CHECK_PARENT_S)
        del question  # it may be large
        connection.send_bytes(json.dumps([status, usage.ru_utime + usage.ru_stime]).encode())


def _answer_and_end(
    question: Callable[..., Any],
    channel: Connection,
    parent: int,
    cpu_s: float,
    num_bytes: int,
    *,
    calls_back: bool,
    confined: bool,
) -> NoReturn:
    status = 1
    try:
        from reward.sandbox.jail import kernel

        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.dup2(1, 2)  # nothing: what is written may hold any text of the answer's
        _limit(cpu_s, num_bytes)
        kernel.end_with(parent)
        if confined:  # others look at text by the standard library alone; it takes longer than most of them
            _confine()
        channel.send_bytes(b"ready")
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # RLIMIT_CPU counts whole seconds
        calls = _Calls(channel) if calls_back else None
        said = _answer(question, *([calls] if calls else []))
        if calls is None or not calls.is_open:  # else what comes back would be taken for nothing
            channel.send_bytes(said)
            status = 0
    finally:
        os._exit(status)


def _answer(question: Callable[..., Any], *arguments: Any) -> bytes:
    try:
        said = json.dumps(question(*arguments), ensure_ascii=False).encode(errors="surrogatepass")
        if len(said) <= _MAX_BYTES:
            return said
        error = "what is found in it is too long"
    except Exception as other:  # on untrusted text, or of a judge that users bring: never a verdict
        said_of = {MemoryError: "it takes more than its memory", RecursionError: "it is nested too deeply"}
        error = said_of.get(type(other), f"{type(other).__name__}: {other}"[:_MAX_DETAIL])
    return json.dumps({"error": error}).encode()


class _Calls:
    """Calls the answer's functions, which the trusted process has run in the sandbox."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self.is_open = False  # a call has begun and not ended

    def __call__(self, fn_name: str, arguments: str) -> tuple[str, bytes, float]:
        if len(arguments) > _MAX_BYTES:
            raise MemoryError
        self.is_open = True
        self._channel.send_bytes(b"?" + json.dumps([fn_name, arguments]).encode())
        outcome, seconds = json.loads(self._channel.recv_bytes())
        result = self._channel.recv_bytes()
        self.is_open = False
        return outcome, result, seconds


def _limit(cpu_s: float, num_bytes: int) -> None:
    """Limit this process to `cpu_s` CPU seconds (at most one more) and to `num_bytes` beside the memory that it has."""
    from reward.sandbox.jail.lockdown import own_address_space

    limits = {resource.RLIMIT_CPU: math.ceil(cpu_s), resource.RLIMIT_AS: own_address_space() + num_bytes}
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


@functools.cache
def _filter() -> bytes:
    """Return the filter of the system calls that a child may make."""
    from reward.sandbox.jail import seccomp

    return seccomp.programs_filter()


def _confine() -> None:
    """Forbid this process to open files other than modules, to open sockets and to reach other processes.

    If the kernel supports none of this, an answer's text is still never run as code.
    """
    from reward.sandbox.jail import kernel, landlock, seccomp

    packages = [path for path in sys.path if os.path.basename(path) in _PACKAGES]
    readable = [sysconfig.get_path("stdlib"), *packages, *_LIBRARIES]
    with contextlib.suppress(OSError):
        kernel.prctl("NO_NEW_PRIVS", kernel.PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict_self(landlock.create_ruleset([(folder, landlock.READ) for folder in readable]))
    with contextlib.suppress(OSError):
        seccomp.install(_filter())


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the trusted process has gone
        main()
    os._exit(0)
