"""The zygote: `python -I -S zygote.py CONNECTION_FD SCRATCH`, started with an empty environment.

It loads what programs will import, tries out which layers of isolation work here, says so, and then forks one slot
process for every connection it is sent. Slots fork the tests. All of them end with the trusted process.
"""

import os
import sys
import types
from typing import Any


def _make_jail_importable() -> None:
    """Make `reward.sandbox.jail` importable without running the packages above it, which programs must not see."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, path in (("reward", os.path.dirname(folder)), ("reward.sandbox", folder)):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package


_make_jail_importable()

import _socket  # noqa: E402
import contextlib  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402

from reward.sandbox.jail import kernel, library, probe, program, slot  # noqa: E402
from reward.sandbox.jail.scratch import remove_tree  # noqa: E402

_CHECK_PARENT_MS = 1000
_TRUSTED_PROCESS_GONE = (BrokenPipeError, ConnectionResetError, KeyboardInterrupt)


def main() -> None:
    """Serve until the trusted process closes the connection or ends; then end the slots and remove the scratch."""
    fd, scratch = sys.argv[1:]
    with contextlib.suppress(*_TRUSTED_PROCESS_GONE):
        _serve(_socket.socket(fileno=int(fd)), scratch)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # slots are of this process's group; their programs end with them
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    remove_tree(scratch)


def _serve(connection: _socket.socket, scratch: str) -> None:
    trusted = os.getppid()
    settings = json.loads(connection.recv(1 << 16) or "null")
    if settings is None:
        return
    os.environ.update(settings["environment"])  # modules that load now look into it
    folders = library.preload(
        settings["modules"], settings["standard"], settings["extra"], all_extensions=settings["all_extensions"]
    )
    folders += settings["zones"]
    layers = probe.try_layers(scratch, folders)
    program.prepare_interpreter(settings["environment"])
    exec(compile("", "warm-up", "exec"))  # the first compilation sets up what takes longer than most programs
    gc.collect()
    gc.freeze()  # so that no collection in a child touches, and so copies, the pages it shares with the zygote
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # slots that end are not waited for
    connection.send(json.dumps(layers).encode())
    enabled = [name for name, reason in layers.items() if not reason]
    own_pid = os.getpid()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    # Another process may hold a copy of the connection's other end, so that it does not close with the trusted process.
    while os.getppid() == trusted:
        if not poll.poll(_CHECK_PARENT_MS):
            continue
        request, fds = slot.receive(connection, 1)
        if not request:
            break
        slots_connection = _socket.socket(fileno=fds[0])
        try:
            pid = os.fork()
        except OSError as error:  # no process to be had now; the next request may have more luck
            with contextlib.suppress(OSError):
                slots_connection.send(json.dumps({"refused": str(error)}).encode())
            pid = -1
        if pid == 0:
            connection.close()
            _become_slot(slots_connection, json.loads(request), enabled, folders, own_pid)
        slots_connection.close()


def _become_slot(
    connection: _socket.socket, request: dict[str, Any], layers: list[str], folders: list[str], zygote: int
) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(*_TRUSTED_PROCESS_GONE):
        try:
            cell = slot.make_cell(request["folder"], request["scratch_bytes"], layers, folders)
            # After the change of group, which clears it.
            kernel.prctl("PDEATHSIG", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        except OSError as error:
            connection.send(json.dumps({"error": str(error)}).encode())
            os._exit(1)
        if os.getppid() == zygote:
            slot.serve(connection, cell)
    os._exit(0)


if __name__ == "__main__":
    main()
