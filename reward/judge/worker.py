"""The judge process: `python -I -S worker.py CONNECTION_FD`, started with an empty environment.

It answers one question after the other until the trusted process closes the connection or ends.
"""

import gc
import json
import math
import os
import resource
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

_CHECK_PARENT_S = 1.0
_MAX_DETAIL = 300  # characters


def main() -> None:
    """Answer questions until the connection closes."""
    connection = Connection(int(sys.argv[1]))
    trusted = os.getppid()
    sys.path[:] = connection.recv()
    from reward.judge.tasks import tasks  # found on the trusted process's path

    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # the limit here is time
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def call(fn_name: str, arguments: str) -> tuple[str, bytes]:
        connection.send_bytes(json.dumps({"call": fn_name}).encode())
        connection.send_bytes(arguments.encode())
        return connection.recv()

    functions = tasks(call)
    limits = _Limits()
    gc.collect()
    gc.freeze()
    threading.Thread(target=_end_with, args=(trusted,), daemon=True).start()
    while True:
        task, arguments, cpu_s, num_bytes = connection.recv()
        limits.give(cpu_s, num_bytes)
        started = time.process_time()
        answer = _answer(functions[task], arguments)
        del arguments  # they may be large
        connection.send_bytes(json.dumps({**answer, "seconds": time.process_time() - started}).encode())


def _end_with(trusted: int) -> None:
    """End this process soon after the trusted one, whatever it does.

    Another process may hold a copy of the connection's other end, so that it does not close with the trusted process.
    """
    while os.getppid() == trusted:
        time.sleep(_CHECK_PARENT_S)
    os._exit(0)


def _answer(function: Any, arguments: tuple) -> dict[str, Any]:
    try:
        return {"value": function(*arguments)}
    except MemoryError:
        error = "it takes more than its memory"
    except RecursionError:
        error = "it is nested too deeply"
    except Exception as other:  # on untrusted text, or of a judge that users bring: never a verdict
        error = f"{type(other).__name__}: {other}"[:_MAX_DETAIL]
    return {"error": error}


class _Limits:
    """The limits of this process, moved on only where a question would find less than it may take."""

    def __init__(self) -> None:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            self._own_bytes = int(file.read().split()[0]) * resource.getpagesize()
        self._cpu_s = 0.0  # at which this process ends
        self._num_bytes = 0

    def give(self, cpu_s: float, num_bytes: int) -> None:
        """Give the next question these CPU seconds, and at most one more, and this memory."""
        if time.process_time() + cpu_s > self._cpu_s:
            self._cpu_s = math.ceil(time.process_time() + cpu_s)
            self._set(resource.RLIMIT_CPU, self._cpu_s)
        if num_bytes != self._num_bytes:
            self._num_bytes = num_bytes
            self._set(resource.RLIMIT_AS, self._own_bytes + num_bytes)

    def _set(self, kind: int, value: float) -> None:
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard), hard))


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the trusted process has gone
        os._exit(0)
