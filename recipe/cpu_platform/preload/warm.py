"""For many jobs on one machine: their drivers, too, are forks of one process, which imports for all of them.

    python -m recipe.cpu_platform.preload.warm NAME &
    VERL_CPU_WARM=NAME python -m recipe.cpu_platform.launch -m verl.trainer.main_ppo +platform=cpu ...

The launcher hands its command over to the fork, and stands in for it to its end. That saves each job the imports of its
driver and of its fork server. This process ends with the one that started it.
"""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import setproctitle

from recipe.cpu_platform import ENVIRONMENT, launch, preload

ROOM_VARIABLE = "VERL_CPU_ROOM"
NUM_BYTES = 1 << 14
"""Of room for the variables of a driver, where /proc shows them."""
ENV_START, ENV_END = 47, 48
"""Their place in ``/proc/self/stat``, counted from behind the program's name."""


def show_environment(environment: Mapping[str, str]) -> None:
    """Let /proc show these variables as this process's, if there is room; nothing may point to the old ones."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[ENV_START]), int(fields[ENV_END])
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    if len(text) <= end - start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))


def main() -> None:
    """Serve; in a fork, run the command that was handed over."""
    launch.enter({**ENVIRONMENT, ROOM_VARIABLE: "." * NUM_BYTES})
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + sys.argv[1])
    listener.listen(64)  # from now on drivers may ask, and wait for the imports
    from recipe.cpu_platform.preload import modules, server

    server.die_with_parent(os.getppid())
    setproctitle.getproctitle()
    modules.load(modules.DRIVER)
    worker = server.DriverServer(listener).serve()
    server.die_with_parent(None)
    preload.is_fork = False
    worker.take_over()
    show_environment(worker.environment)
    sys.argv = ["launch", *worker.arguments]
    sys.orig_argv = [sys.executable, "-m", launch.__name__, *worker.arguments]
    sys.path.insert(1, os.getcwd())
    launch.start()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
