"""Run as Python by Ray and multiprocessing: let the fork server start the process, and stand in for it to its end.

A script of its own (``python -IS client.py ARGUMENTS``), which starts in ten milliseconds: it imports nothing but the
standard library, and never this package. What is no worker, or cannot be served, becomes a plain Python. Ray runs it in
place of its ``setup_worker.py`` too, which imports Ray only to run Python with some variables.
"""

import contextlib
import json
import os
import re
import resource
import select
import signal
import socket
import sys
from typing import NoReturn

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
CONTEXT = "--serialized-runtime-env-context="  # of Ray's `setup_worker.py`: a worker's runtime environment as JSON
TIMEOUT_S = 120  # for the first answer: the first worker waits for the fork server's imports


def set_up(arguments: list[str]) -> list[str]:
    """Do what Ray's ``setup_worker.py`` does, unless Ray shall run something else; return what Python is to run."""
    own = [argument for argument in arguments if argument.startswith((CONTEXT, "--language="))]
    context = json.loads(next(argument for argument in own if argument.startswith(CONTEXT)).removeprefix(CONTEXT))
    is_ours = os.path.dirname(context.get("py_executable", "")) == os.path.dirname(__file__)
    if not is_ours or context["command_prefix"] or context["override_worker_entrypoint"]:
        return [os.path.join(os.path.dirname(arguments[0]), "setup_worker.py"), *arguments]
    for name, value in context["env_vars"].items():  # as ray._private.utils.update_envs
        os.environ[name] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
    return [argument for argument in arguments if argument not in own]


def is_worker(arguments: list[str]) -> bool:
    """Return whether these are the arguments of a Ray worker, or of a child that multiprocessing spawns."""
    return bool(arguments) and (arguments[0].endswith("default_worker.py") or "--multiprocessing-fork" in arguments)


def request(arguments: list[str], descriptors: list[int]) -> bytes:
    """Return what the worker must take over from this process."""
    with open("/proc/self/oom_score_adj") as file:
        oom_score_adj = int(file.read())
    return json.dumps(
        {
            "arguments": arguments,
            "environment": dict(os.environ),
            "directory": os.getcwd(),
            "descriptors": descriptors,
            "group": os.getpgrp(),
            "blocked_signals": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "oom_score_adj": oom_score_adj,
        }
    ).encode()


def inherited_descriptors() -> list[int]:
    """Return the standard streams and whatever else this process was given."""
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):  # the listing's own
            if number <= 2 or os.get_inheritable(number):
                os.fstat(number)
                found.append(number)
    return found


def hand_over(name: str, arguments: list[str]) -> tuple[socket.socket, int]:
    """Let the fork server start the worker, or raise OSError; return a connection for the exit status, and a pidfd."""
    descriptors = inherited_descriptors()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(TIMEOUT_S)
    connection.connect("\0" + name)
    pipe, _ = os.pipe()  # the kernel kills the worker when nobody holds the other end: when this process ends
    socket.send_fds(connection, [request(arguments, descriptors)], [pipe, *descriptors])
    refusal, pidfds, _, _ = socket.recv_fds(connection, 1 << 12, 1)
    if not pidfds:
        raise OSError(refusal.decode() or "it ended")
    connection.settimeout(None)
    for number in descriptors:
        if number > 2:  # whoever waits for the worker to close them must not wait for this process
            os.close(number)
    return connection, pidfds[0]


def stand_in(connection: socket.socket, pidfd: int, parent: int) -> NoReturn:
    """Forward signals to the worker and end as it ends, or with the parent of this process; that ends the worker.

    Worker and parent are given by descriptors of their processes.
    """

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    watched: socket.socket | int = connection
    status = b""
    while not status:
        ready, _, _ = select.select([watched, parent], [], [])
        if parent in ready or watched == pidfd:
            os._exit(1)
        with contextlib.suppress(OSError):
            status = connection.recv(16)
        watched = pidfd  # without a status the fork server is gone, and nobody will know how the worker ends
    code = int(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL and SIGSTOP
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> NoReturn:
    """Be a worker, one way or the other."""
    arguments = sys.argv[1:]
    if any(argument.startswith(CONTEXT) for argument in arguments):
        arguments = set_up(arguments)
    name = os.environ.get("VERL_FORK_SERVER")
    if name and is_worker(arguments):
        parent = os.pidfd_open(os.getppid())  # now: it may end while the fork server still imports
        try:
            worker = hand_over(name, arguments)
        except OSError as error:
            print(f"preload: not forked from the preloaded process ({error})", file=sys.stderr, flush=True)
        else:
            stand_in(*worker, parent)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
