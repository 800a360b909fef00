"""A fork that becomes a process of Ray or multiprocessing."""

import contextlib
import fcntl
import os
import runpy
import select
import signal
import sys
import types
from dataclasses import dataclass

from recipe import preload

PROGRAM_FOLDER = sys.path[0]  # of the program that this interpreter was started with; a worker has one of its own


@dataclass(slots=True, kw_only=True)
class Worker:
    """A stand-in's request for a worker; ``client.py`` describes the fields."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    descriptors: list[int]
    group: int
    blocked_signals: list[int]
    niceness: int
    oom_score_adj: int
    received: list[int]  # numbers here: first of a pipe, whose other end the stand-in holds, then of the descriptors

    def close_received(self) -> None:
        """Close the descriptors that came with the message."""
        for number in self.received:
            os.close(number)

    def run(self) -> None:
        """Become the process and run its program, as ``python ARGUMENTS`` would."""
        self._take_over_descriptors()
        self._take_over_process()
        self._take_over_interpreter()
        position = next((n for n, argument in enumerate(self.arguments) if argument == "-c"), None)
        if position is None:
            sys.argv = list(self.arguments)
            sys.path[sys.path.index(PROGRAM_FOLDER)] = os.path.dirname(self.arguments[0])
            runpy.run_path(self.arguments[0], run_name="__main__")
        else:
            sys.argv = ["-c", *self.arguments[position + 2 :]]
            sys.path[sys.path.index(PROGRAM_FOLDER)] = ""
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(self.arguments[position + 1], main.__dict__)

    def _take_over_descriptors(self) -> None:
        free = max(self.descriptors + self.received) + 1
        pipe, *moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, free) for number in self.received]
        self.close_received()
        for number, wanted in zip(moved, self.descriptors, strict=True):
            os.dup2(number, wanted)
            os.close(number)
        _die_with(pipe)

    def _take_over_process(self) -> None:
        os.chdir(self.directory)
        with contextlib.suppress(OSError):  # a group of another session, or one that has ended
            os.setpgid(0, self.group)
        os.setpriority(os.PRIO_PROCESS, 0, max(self.niceness, os.getpriority(os.PRIO_PROCESS, 0)))
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(self.oom_score_adj))
        signal.signal(signal.SIGINT, preload.interrupt_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked_signals)

    def _take_over_interpreter(self) -> None:
        import numpy
        import torch

        os.environ.clear()
        os.environ.update(self.environment)
        for path in reversed(self.environment.get("PYTHONPATH", "").split(os.pathsep)):
            if path and path not in sys.path:
                sys.path.insert(1, path)
        numpy.random.seed()  # each process has another seed; Python's own generator sees to that itself
        torch.seed()
        if num_threads := self.environment.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(num_threads))


def _die_with(pipe: int) -> None:
    """Let the kernel kill this process when the other end of a pipe is closed; nothing is ever written to it."""
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # it was closed before
        os.kill(os.getpid(), signal.SIGKILL)
