"""Handlers that end a program at Ctrl-C (SIGINT) or SIGTERM with its own last words and without a traceback."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_CHILD_SUBREAPER = 36
NUM_LOOKS = 3
"""The number of searches for processes that are left: one that is killed may leave others."""
LastWords = Callable[[str], str]
"""A function that returns a program's last words, given the name of what stopped it."""


def not_begun(name: str) -> str:
    """Return the last words of a program that has not begun its work."""
    return f"stopped by {name} before the run began: what was saved earlier stays\ngive the same command again"


@contextlib.contextmanager
def ends_at_signals(last_words: LastWords = not_begun) -> Iterator[None]:
    """End at once at a signal; for the time before Ray starts, when there is nothing to clean up.

    No exception is raised, because a running import might take the exception for a failure of its own.
    """

    def end(number: int, _: FrameType | None) -> NoReturn:
        _end(number, last_words)

    with _handlers({number: end for number in SIGNALS}):
        yield


@contextlib.contextmanager
def ends_ray_at_signals(last_words: LastWords) -> Iterator[None]:
    """End at a signal, after Ray has ended its processes; for the time while Ray runs.

    Only KeyboardInterrupt and SystemExit leave ``ray.get``. ``ray.init`` sets a handler of SIGTERM that raises
    SystemExit (``ray/_private/worker.py``), so the one that is there before does the same.
    """
    with _handlers({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: lambda number, _: sys.exit(number)}):
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as stop:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            _end_ray()
            _end(signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM, last_words)


def _end_ray() -> None:
    """End Ray and all its processes.

    ``ray.shutdown`` alone leaves the agents of a raylet that was just starting, for a minute. Those whose parent ends
    become children of this process, and are killed. The fork server, which looks as this process does, ends with it.
    """
    import psutil  # here: the rest of this module is used before Ray may be imported
    import ray

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    ray.shutdown()
    own = psutil.Process()
    for _ in range(NUM_LOOKS):
        found = []
        for child in own.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if child.cmdline() != own.cmdline():
                    found += [child, *child.children(recursive=True)]
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=1)


@contextlib.contextmanager
def _handlers(handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    """Set handlers of signals for a while; a signal that this process was told to ignore stays ignored."""
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _end(number: int, last_words: LastWords) -> NoReturn:
    """End as shells expect it, without the interpreter's finalization, in which bindings report leaks."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    print(last_words(name), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 + number)
