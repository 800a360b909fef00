"""The fork server: a process that has imported all packages, and forks for each worker."""

import contextlib
import ctypes
import json
import multiprocessing
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import uuid
from dataclasses import dataclass

from recipe import preload
from recipe.preload import modules
from recipe.preload.worker import Worker

JOB_VARIABLES = ("RAY_JOB_ID", "RAY_RAYLET_PID")  # Ray reads them at its import: the server serves one job on one node
MAX_REQUEST_BYTES = 1 << 20
MAX_DESCRIPTORS = 253  # the kernel's limit of one message
TIMEOUT_S = 10
PEER = struct.Struct("3i")  # `struct ucred`: process, user and group
PR_SET_PDEATHSIG = 1


def start(device: modules.Device) -> Worker | None:
    """Fork the fork server for a kind of machine; OSError if the system has no socket or process left.

    The result is None in the calling process, which becomes the driver, and in each fork of the server the worker that
    the fork has to run. The server itself never returns.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = f"verl-forks-{uuid.uuid4().hex}"
    listener.bind("\0" + name)
    listener.listen(64)
    sys.stdout.flush()
    sys.stderr.flush()
    driver, pid = os.getpid(), os.fork()
    if pid:
        listener.close()
        os.environ.update({preload.SOCKET_VARIABLE: name, preload.INTERPRETER_VARIABLE: sys.executable})
        preload.serves = True
        threading.Thread(target=_watch, args=(pid,), name="fork-server-watch", daemon=True).start()
        return None
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:  # it died before the kernel was told
        os._exit(1)
    return ForkServer(listener, device).serve()


def _watch(pid: int) -> None:
    """Print a line if the fork server ends before the driver does."""
    with contextlib.suppress(ChildProcessError):  # something else of this process waits for all children
        os.waitpid(pid, 0)
    print(
        f"preload: the preloaded process {pid} ended. Workers that start from now on import their packages themselves, "
        "which takes longer. On GPUs verl lets the workers of vLLM's engines end with it.",
        file=sys.stderr,
        flush=True,
    )


@dataclass(slots=True, eq=False)
class Running:
    """A worker, and the connection of its stand-in."""

    connection: socket.socket
    pid: int
    pidfd: int

    def close(self) -> None:
        """Close the worker's descriptor and the connection."""
        self.connection.close()
        os.close(self.pidfd)


class ForkServer:
    """A server that forks a worker for each stand-in that connects, and sends the stand-in the exit status."""

    def __init__(self, listener: socket.socket, device: modules.Device) -> None:
        self._listener, self._device = listener, device
        self._running: set[Running] = set()
        self._job: list[str | None] | None = None
        self._has_begun_cuda = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> Worker:
        """Serve until the driver ends. Returns in forks only."""
        # The driver's to handle. Its workers inherit from it whether they ignore it.
        preload.interrupt_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._device.prepare()
        modules.load((*modules.ENGINE, *self._device.engine))
        if "ray" in sys.modules:
            raise ImportError("a module of recipe.preload.modules imports Ray before the job is known")
        while True:
            for key, _ in self._selector.select():
                if key.data:
                    self._finish(key.data)
                    continue
                connection, _ = self._listener.accept()
                if worker := self._answer(connection):
                    return worker

    def _answer(self, connection: socket.socket) -> Worker | None:
        """Fork the worker that a stand-in asks for; return it in the fork, and None in the server."""
        worker = None
        try:
            worker = self._receive(connection)
            self._check(worker)
            pid = os.fork()
            if not pid:
                connection.close()
                self._close()
                preload.is_fork = True
                return worker
            running = Running(connection, pid, os.pidfd_open(pid))
            self._running.add(running)
            self._selector.register(running.pidfd, selectors.EVENT_READ, running)
            socket.send_fds(connection, [str(pid).encode()], [running.pidfd])
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                connection.send(str(error).encode()[:1000])
        if worker:
            worker.close_received()
        return None

    def _receive(self, connection: socket.socket) -> Worker:
        """Read a stand-in's message; OSError if none comes."""
        connection.settimeout(TIMEOUT_S)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        if PEER.unpack(peer)[1] != os.geteuid():
            raise ValueError("it is another user's")
        message, received, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        return Worker(**json.loads(message), received=received)

    def _check(self, worker: Worker) -> None:
        """Import the rest before the first worker; ValueError says why a worker cannot be a fork of this process."""
        job = [worker.environment.get(name) for name in JOB_VARIABLES]
        if self._job is None:
            self._job = job
            os.environ.clear()
            os.environ.update(worker.environment)
            modules.spare_random_numbers()
            with self._device.around_job():
                modules.load((*modules.JOB, *self._device.job))
            modules.title_workers()
            multiprocessing.set_executable(str(preload.STAND_IN))
            self._has_begun_cuda = modules.has_begun_cuda()
        if job != self._job:
            raise ValueError("it is of another job or node")
        if self._has_begun_cuda:
            raise ValueError("an import has begun CUDA, which no fork could use")

    def _finish(self, running: Running) -> None:
        """Send the exit status to the stand-in."""
        _, status = os.waitpid(running.pid, 0)
        with contextlib.suppress(OSError):  # the stand-in was killed, and the worker with it
            running.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        self._selector.unregister(running.pidfd)
        self._running.remove(running)
        running.close()

    def _close(self) -> None:
        """Close the server's sockets and descriptors; called in a fork."""
        self._selector.close()
        self._listener.close()
        for running in self._running:
            running.close()
