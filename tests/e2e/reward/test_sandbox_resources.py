"""What programs share with each other and with the machine: sockets, disk, processes, time. Nothing of it is harmed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hostile_kernel import LEADERLESS
from waiting import PATIENCE_S, comes_true

from reward.limits import Limits
from reward.sandbox import Execution, Program, Sandbox

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
REPOSITORY = Path(__file__).parents[3]


def run(sandbox: Sandbox, code: str, *, timeout_s: float = 4.0, limits: Limits | None = None) -> Execution:
    return sandbox.execute(Program(code=code), limits=limits or Limits(), timeout_s=timeout_s)


@pytest.mark.parametrize("is_abstract", [False, True])
@pytest.mark.parametrize("send", ["a.connect({0!r}); a.send(b'x')", "a.sendto(b'x', {0!r})"])
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_nothing_reaches_a_socket_of_the_machine(
    sandbox: Sandbox, tmp_path: Path, is_abstract: bool, send: str, kind: int
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


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # ended meanwhile
        return []


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):  # a first thread that has ended is a zombie, though others live
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] != "Z" or int(fields[17]) > 1
    return False


def has_lost_its_leader(pid: int) -> bool:
    return is_alive(pid) and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def sleeps(pid: int) -> bool:
    return "hrtimer_nanosleep" in Path(f"/proc/{pid}/wchan").read_text()


UNBOUND = "import ctypes, signal, time\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
# Whatever it does about it, it dies with its slot.
STUBBORN = """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
time.sleep(3600)
"""
OUTLIVING = {
    "stubborn": (STUBBORN, sleeps),
    "spinning without its first thread": (LEADERLESS["spin"][0], has_lost_its_leader),
    "sleeping without its first thread": (LEADERLESS["sleep"][0], has_lost_its_leader),
}


@pytest.mark.parametrize("mode", ["kill slot", "close"])
@pytest.mark.parametrize("name", OUTLIVING)
def test_no_program_outlives_its_slot(sandbox: Sandbox, name: str, mode: str) -> None:
    code, is_ready = OUTLIVING[name]
    slot = sandbox._idle["standard"][0].pid
    limits = Limits(infra_attempts=1)
    thread = threading.Thread(target=lambda: run(sandbox, UNBOUND + code, timeout_s=60.0, limits=limits))
    thread.start()
    assert comes_true(lambda: any(map(is_ready, children_of(slot))))
    (program,) = children_of(slot)
    if mode == "close":
        sandbox.close()
    else:
        os.kill(slot, signal.SIGKILL)
    thread.join(PATIENCE_S)
    try:
        assert comes_true(lambda: not is_alive(program))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5])
def test_slots_end_silently_whenever_the_trusted_process_does(tmp_path: Path, delay_s: float) -> None:
    code = """
        import threading
        from reward.limits import Limits
        from reward.sandbox import Sandbox, Program
        def run(code):
            sandbox.execute(Program(code=code), limits=Limits(), timeout_s=60)
        print(flush=True)
        sandbox = Sandbox(num_slots=3)
        endless = [f"{word}\\nwhile True: pass" for word in ("0", "import numpy", "import ssl")]
        threads = [threading.Thread(target=run, args=(code,)) for code in endless]
        [thread.start() for thread in threads]
    """
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=file, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.terminate()
        process.wait()
        process.stdout.close()
    # A folder made just before the end may stay: there was no slot yet that could write into it.
    # `walk` bears that a folder goes while it is looked at; a glob does not.
    assert comes_true(
        lambda: not any("/sandbox-scratch-" in at and (of or files) for at, of, files in os.walk(tmp_path))
    )
    assert errors.read_text() == ""


def test_too_many_bytes_are_seen_though_the_program_ends_at_once(sandbox: Sandbox) -> None:
    limits = Limits(scratch_bytes=3 << 20)
    code = "open('{0}', 'wb').write(bytes(1 << 20)); "
    assert run(sandbox, "".join(map(code.format, range(3))), limits=limits).status == "ok"
    assert run(sandbox, "".join(map(code.format, range(4))), limits=limits).status == "output_limit"
    assert run(sandbox, "for i in range(256): open(str(i), 'w').close()").status == "ok"
    assert run(sandbox, "for i in range(257): open(str(i), 'w').close()").status == "output_limit"
