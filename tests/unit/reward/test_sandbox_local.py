import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from in_sandbox import run, sandbox
from waiting import comes_true

from reward.limits import Limits
from reward.sandbox import Program, Sandbox

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def f():\n    1 / 0\n\nf()", "ZeroDivisionError: division by zero (solution.py, line 2)"),
        ("input()", "EOFError"),
        ("exit(3)", "exit status 3"),
        ("raise SystemExit('no')", "no"),
        ("import torch", "No module named 'torch'"),
        ("open('f', 'wb').write(bytes(17 << 20))", "File too large"),
        ("import os\nos.kill(0, 9)", "killed by signal 9"),  # its own group, not the test's parent
    ],
)
def test_run_time_errors(code: str, detail: str) -> None:
    execution = run(code)
    assert execution.status == "runtime_error"
    assert detail in execution.detail


@pytest.mark.parametrize("code", ["print(", "x = '\0'", "return 1", "x = '\ud800'", "(" * 5000])
def test_compile_errors(code: str) -> None:
    assert run(code).status == "compile_error"


def test_flood_of_errors_does_not_block_the_program() -> None:
    assert run("import sys\nsys.stderr.write('x' * 3_000_000)\nprint(1)").stdout == "1\n"


def test_unread_input_does_not_block_us() -> None:
    assert run("print(1)", stdin="x" * 5_000_000).stdout == "1\n"


def test_failure_to_start_is_infra_error_after_the_attempts() -> None:
    # No child gets ready in a microsecond.
    execution = run("print(1)", limits=Limits(startup_s=1e-6, infra_attempts=2))
    assert execution.status == "infra_error"
    assert "did not get ready" in execution.detail


def test_a_lost_slot_is_replaced() -> None:
    run("print(1)")
    lost = {slot.pid for slot in sandbox()._slots}
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    assert run("print(1)").stdout == "1\n"
    assert not lost >= {slot.pid for slot in sandbox()._slots}


def test_closing_leaves_no_process_descriptor_or_folder() -> None:
    num_fds = len(os.listdir("/proc/self/fd"))
    sandbox = Sandbox(num_slots=1)
    (slot,) = sandbox._slots
    assert Path(slot.scratch).is_dir()
    sandbox.close()
    sandbox.close()
    assert not Path(f"/proc/{slot.pid}").exists() and not Path(slot.scratch).exists()
    assert len(os.listdir("/proc/self/fd")) == num_fds
    execution = sandbox.execute(Program(code="1"), limits=Limits(infra_attempts=1), timeout_s=1.0)
    assert (execution.status, execution.detail) == ("infra_error", "the sandbox is closed")


def test_a_slot_that_cannot_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Sandbox(num_slots=1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert list(tmp_path.iterdir()) == []


def test_kill_of_the_trusted_process_leaves_nothing(tmp_path: Path) -> None:
    code = """
        from reward.limits import Limits
        from reward.sandbox import Sandbox, Program
        sandbox = Sandbox(num_slots=1)
        (slot,) = sandbox._slots
        print(slot.pid, flush=True)
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
    slot = int(process.stdout.readline())
    children: list[str] = []
    assert comes_true(
        lambda: children.extend(Path(f"/proc/{slot}/task/{slot}/children").read_text().split()) or children
    )
    assert list(tmp_path.iterdir())
    process.kill()
    process.wait()
    process.stdout.close()
    assert comes_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (slot, children[0])))
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_does_not_end_its_parents_sandbox() -> None:
    assert run("print(1)").stdout == "1\n"
    slots = set(sandbox()._slots)
    pid = os.fork()
    if pid == 0:
        sandbox().close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert run("print(1)").stdout == "1\n"
    assert sandbox()._slots == slots


def test_no_end_while_compiling_is_a_time_out() -> None:
    assert run("x = [\n" + "1,\n" * 2_000_000 + "]", timeout_s=0.05).status == "time_out"
