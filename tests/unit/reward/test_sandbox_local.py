import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reward.limits import Limits
from reward.sandbox import Execution, LocalSandbox, Program

REPOSITORY = Path(__file__).parents[3]
LIMITS = Limits(test_s=5.0, memory_bytes=300 << 20)
SANDBOX: LocalSandbox


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    global SANDBOX
    SANDBOX = LocalSandbox(num_slots=2)
    yield
    SANDBOX.close()


def run(code: str, stdin: str = "", timeout_s: float = 5.0, limits: Limits = LIMITS) -> Execution:
    return SANDBOX.execute(Program(code=code, stdin=stdin), limits=limits, timeout_s=timeout_s)


@pytest.mark.parametrize(
    "code",
    [
        "print(int(input()) + int(input()))",
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "import os\nos.write(1, str(sum(map(int, os.read(0, 99).split()))).encode())",
        "def main():\n    print(sum(int(x) for x in open(0)))\nif __name__ == '__main__':\n    main()",
        "print(7)\nexit(0)",
        "print(7)\nimport sys\nsys.exit(0)",
        "print(7)\nimport os, sys\nsys.stdout.flush()\nos._exit(0)",
        "import threading\nt = threading.Thread(target=lambda: print(7))\nt.start()",
        "import threading\nthreading.stack_size(256 << 20)\nt = threading.Thread(target=print, args=(7,))\nt.start()",
        "import concurrent.futures as c\nwith c.ThreadPoolExecutor(4) as p: print(sum(p.map(int, '1123')))",
        "import numpy as np\nprint(np.arange(8)[-1], np.random.rand(0).sum() or '')",
        "import numpy.linalg\nprint(round(numpy.linalg.norm([7.0, 0.0])))",
        "import asyncio\nasync def f(): return 7\nprint(asyncio.run(f()))",
        "import xml.etree.ElementTree as e\nprint(e.fromstring('<a>7</a>').text)",
        "import hashlib, decimal, datetime\nprint(decimal.Decimal(7))",
        "print(sum(map(int, open('/dev/stdin').read().split())))",
        "open('f', 'w').write('7')\nprint(open('f').read())",
        "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'7'); f.seek(0); print(f.read().decode())",
        "import atexit\natexit.register(print, 7)",
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print(7))\nsignal.alarm(1)\nsignal.pause()",
        "import random\nrandom.seed(1)\nprint(random.randint(7, 7))",
        "import sys\nsys.setrecursionlimit(9000)\ndef f(n):\n    return n and 1 + f(n - 1)\nprint(f(5000) - 4993)",
    ],
)
def test_programs_that_end_well(code: str) -> None:
    execution = run(code, stdin="3\n4\n")
    assert (execution.status, execution.stdout.strip()) == ("ok", "7")


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def f():\n    1 / 0\n\nf()", "ZeroDivisionError: division by zero (solution.py, line 2)"),
        ("input()", "EOFError"),
        ("exit(3)", "exit status 3"),
        ("raise SystemExit('no')", "no"),
        ("import os\nos.kill(os.getpid(), 9)", "killed by signal 9"),
        ("import torch", "No module named 'torch'"),
        ("open('f', 'wb').write(bytes(17 << 20))", "File too large"),
        ("import os\nos.kill(0, 9)", "killed by signal 9"),  # its own group, not the test's parent
    ],
)
def test_run_time_errors(code: str, detail: str) -> None:
    execution = run(code)
    assert execution.status == "runtime_error"
    assert detail in execution.detail


def test_memory_limit() -> None:
    execution = run("x = bytearray(1 << 34)")
    assert (execution.status, execution.detail) == ("memory_limit", "MemoryError (solution.py, line 1)")


@pytest.mark.parametrize("code", ["print(", "x = '\0'", "return 1", "x = '\ud800'", "(" * 5000])
def test_compile_errors(code: str) -> None:
    assert run(code).status == "compile_error"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import os, time\nos.closerange(0, 64)\ntime.sleep(60)",
        "import signal\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_time_out(code: str) -> None:
    started = time.monotonic()
    execution = run(code, timeout_s=0.5)
    assert execution.status == "time_out"
    assert execution.detail == "no end within 0.5 s"
    assert 0.5 <= execution.seconds < 3
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("code", ["while True: print('x' * 1000)", "import os\nwhile True: os.write(1, b'x' * 65536)"])
def test_output_flood_is_stopped(code: str) -> None:
    execution = run(code)
    assert execution.status == "output_limit"
    assert "bytes of output" in execution.detail


def test_flood_of_errors_does_not_block_the_program() -> None:
    assert run("import sys\nsys.stderr.write('x' * 3_000_000)\nprint(1)").stdout == "1\n"


def test_unread_input_does_not_block_us() -> None:
    assert run("print(1)", stdin="x" * 5_000_000).stdout == "1\n"


def test_child_sees_neither_environment_nor_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_TEST_SECRET", "secret")
    code = "import os\nprint(sorted(os.environ), os.listdir('.'), os.getsid(0) == os.getpid())"
    stdout = run(code).stdout
    assert "SECRET" not in stdout
    assert stdout.strip().endswith("[] True")


def test_failure_to_start_is_infra_error_after_the_attempts() -> None:
    before = SANDBOX.metrics()
    # No child gets ready in a microsecond.
    execution = run("print(1)", limits=Limits(startup_s=1e-6, infra_attempts=2))
    assert execution.status == "infra_error"
    assert "did not get ready" in execution.detail
    after = SANDBOX.metrics()
    gained = {name: after[name] - before.get(name, 0) for name in ("retries", "infra_error", "runs")}
    assert gained == {"retries": 1, "infra_error": 1, "runs": 1}


def slots_of(sandbox: LocalSandbox) -> list[int]:
    return [slot.pid for slots in sandbox._idle.values() for slot in slots]


@pytest.mark.parametrize("victims", [slots_of, lambda sandbox: [zygote.pid for zygote in sandbox._zygotes.values()]])
def test_lost_slots_and_zygotes_are_replaced(victims: Callable[[LocalSandbox], list[int]]) -> None:
    run("print(1)")
    restarts = SANDBOX.metrics().get("restarts", 0)
    for pid in victims(SANDBOX):
        os.kill(pid, signal.SIGKILL)
    # Slots end a moment after their zygote; whichever a run meets, it succeeds.
    wait_for(lambda: run("print(1)").stdout == "1\n" and SANDBOX.metrics().get("restarts", 0) > restarts)


def test_a_lost_zygote_is_closed_once() -> None:
    """Whatever has its descriptors' numbers by then is not the sandbox's."""
    with contextlib.closing(LocalSandbox(num_slots=2)) as sandbox:
        zygote = sandbox._zygotes["lean"]
        sandbox._drop(zygote)  # by the thread that finds it lost first
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        sandbox._drop(zygote)
        for fd in others:
            os.close(fd)


def test_closing_a_slot_ends_it_and_no_process_that_has_its_number_now() -> None:
    assert run("print(1)").stdout == "1\n"
    zygote = SANDBOX._zygotes["lean"]
    num_fds = len(os.listdir("/proc/self/fd"))
    slot = zygote.open_slot(1 << 20)
    pid = slot.pid
    with subprocess.Popen(["sleep", "60"]) as other:
        slot.pid = other.pid
        slot.close()
        slot.close()
        wait_for(lambda: not Path(f"/proc/{pid}").exists())
        assert other.poll() is None
        other.kill()
    assert len(os.listdir("/proc/self/fd")) == num_fds


def test_kill_of_the_trusted_process_leaves_nothing(tmp_path: Path) -> None:
    code = """
        from reward.limits import Limits
        from reward.sandbox import LocalSandbox, Program
        sandbox = LocalSandbox(num_slots=1)
        zygote = next(iter(sandbox._zygotes.values()))
        sandbox.execute(Program(code="1"), limits=Limits(), timeout_s=5)
        (slots,) = sandbox._idle.values()
        print(zygote.pid, slots[0].pid, flush=True)
        sandbox.execute(Program(code="while True: pass"), limits=Limits(), timeout_s=60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    zygote, slot = map(int, process.stdout.readline().split())
    children: list[str] = []
    wait_for(lambda: children.extend(Path(f"/proc/{slot}/task/{slot}/children").read_text().split()) or children)
    assert list(tmp_path.iterdir())
    process.kill()
    process.wait()
    process.stdout.close()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (zygote, slot, children[0])))
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_does_not_end_its_parents_sandbox() -> None:
    assert run("print(1)").stdout == "1\n"
    restarts = SANDBOX.metrics().get("restarts", 0)
    pid = os.fork()
    if pid == 0:
        SANDBOX.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert run("print(1)").stdout == "1\n"
    assert SANDBOX.metrics().get("restarts", 0) == restarts


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_limits_reject_nonsense() -> None:
    with pytest.raises(ValueError, match="limit test_s must be a number above 0, got 0"):
        Limits(test_s=0)


def test_no_end_while_compiling_is_a_time_out() -> None:
    assert run("x = [\n" + "1,\n" * 2_000_000 + "]", timeout_s=0.05).status == "time_out"
