"""The zygote: `python -I -S zygote.py CONNECTION_FD`, started with an empty environment.

It loads what programs will import, tries out which layers of isolation work here, says so, and then forks one slot
process for every connection it is sent. Slots fork the tests. All of them end with the trusted process.
"""

import os
import sys
import types


def _make_jail_importable() -> None:
    """Make `reward.sandbox.jail` importable without running the packages above it, which programs must not see."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, path in (("reward", os.path.dirname(folder)), ("reward.sandbox", folder)):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package


_make_jail_importable()

import _socket  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402

from reward.sandbox.jail import kernel, library, lockdown, program, slot  # noqa: E402

_CHECK_PARENT_MS = 1000


def main() -> None:
    """Serve until the trusted process closes the connection or ends."""
    connection = _socket.socket(fileno=int(sys.argv[1]))
    trusted = os.getppid()
    settings = json.loads(connection.recv(1 << 16))
    os.environ.update(settings["environment"])  # modules that load now look into it
    folders = library.preload(
        settings["modules"], settings["standard"], settings["extra"], all_extensions=settings["all_extensions"]
    )
    folders += settings["zones"]
    layers = lockdown.probe(settings["scratch"], folders)
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
        scratch, fds = slot.receive(connection, 1)
        if not scratch:
            break
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become_slot(_socket.socket(fileno=fds[0]), scratch.decode(), enabled, folders, own_pid)
        os.close(fds[0])
    slot.remove_tree(settings["scratch"])


def _become_slot(connection: _socket.socket, scratch: str, layers: list[str], folders: list[str], zygote: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        cell = slot.make_cell(scratch, layers, folders)
        # After the change of group, which clears it.
        kernel.prctl("PDEATHSIG", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == zygote:
            slot.serve(connection, cell)
    except OSError as error:
        connection.send(json.dumps({"error": str(error)}).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
