"""What programs share with each other and with the machine: sockets, disk, processes, time. Nothing of it is harmed."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.limits import Limits
from reward.sandbox import Execution, LocalSandbox, Program

pytestmark = pytest.mark.e2e


@pytest.fixture
def sandbox() -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(num_slots=2)
    yield sandbox
    sandbox.close()


def run(sandbox: LocalSandbox, code: str, *, timeout_s: float = 4.0, limits: Limits | None = None) -> Execution:
    return sandbox.execute(Program(code=code), limits=limits or Limits(), timeout_s=timeout_s)


@pytest.mark.parametrize("is_abstract", [False, True])
@pytest.mark.parametrize("send", ["a.connect({0!r}); a.send(b'x')", "a.sendto(b'x', {0!r})"])
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_nothing_reaches_a_socket_of_the_machine(
    sandbox: LocalSandbox, tmp_path: Path, is_abstract: bool, send: str, kind: int
) -> None:
    name = f"\0reward-test-{os.getpid()}" if is_abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as machine:
        machine.bind(name)
        if not is_abstract:
            os.chmod(name, 0o666)
            for folder in (tmp_path, *list(tmp_path.parents)[:2]):  # pytest makes its folders for one user
                os.chmod(folder, folder.stat().st_mode | 0o011)
        code = f"import socket\na, b = socket.socketpair(socket.AF_UNIX, {int(kind)})\n" + send.format(name)
        execution = run(sandbox, code)
        machine.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            pytest.fail(f"a program sent {machine.recv(9)!r}")
    assert execution.status == "runtime_error"
    assert "Error" in execution.detail
