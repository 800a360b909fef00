import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from reward.execution import Execution, execute
from reward.limits import Limits

LIMITS = Limits(test_s=5.0, memory_bytes=300 << 20)


def run(code: str, stdin: str = "", timeout_s: float = 5.0, limits: Limits = LIMITS) -> Execution:
    return execute(code, limits=limits, timeout_s=timeout_s, stdin=stdin)


def call(code: str, *arguments: object) -> Execution:
    return execute(code, limits=LIMITS, timeout_s=5.0, fn_name="f", arguments=list(arguments))


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
        "import sys\nsys.setrecursionlimit(9000)\ndef f(n):\n    return n and 1 + f(n - 1)\nprint(f(5000) - 4993)",
    ],
)
def test_programs_that_end_well(code: str) -> None:
    execution = run(code, stdin="3\n4\n")
    assert (execution.status, execution.stdout.strip()) == ("ok", "7")


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("input()", "EOFError"),
        ("exit(3)", "exit status 3"),
        ("raise SystemExit('no')", "no"),
        ("x = bytearray(1 << 34)", "MemoryError"),
        ("import os\nos.kill(os.getpid(), 9)", "killed by signal 9"),
        ("import numpy", "No module named 'numpy'"),
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
    assert execution.status == "runtime_error"
    assert execution.detail == "no end within 0.5 s"
    assert 0.5 <= execution.seconds < 3
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("code", ["while True: print('x' * 1000)", "import os\nwhile True: os.write(1, b'x' * 65536)"])
def test_output_flood_is_stopped(code: str) -> None:
    execution = run(code)
    assert execution.status == "runtime_error"
    assert "bytes of output" in execution.detail


def test_flood_of_errors_does_not_block_the_program() -> None:
    assert run("import sys\nsys.stderr.write('x' * 3_000_000)\nprint(1)").stdout == "1\n"


def test_unread_input_does_not_block_us() -> None:
    assert run("print(1)", stdin="x" * 5_000_000).stdout == "1\n"


def test_call_returns_plain_values() -> None:
    assert call("def f(a, b):\n    return (a, b)", 1, "x").value == [1, "x"]
    assert call("class Solution:\n    def f(self, a: List[int]) -> int:\n        return max(a)", [3, 9]).value == 9
    assert call("def f(a):\n    return Counter(a).most_common(1)[0][0]", "abb").value == "b"
    assert call("def f(d):\n    return [d[1], {2: None}, True, -0.5]", {1: 'é"\ud800'}).value == [
        'é"\ud800',
        {"2": None},
        True,
        -0.5,
    ]
    assert call("def f():\n    return [float('inf'), 10**30]").value == [float("inf"), 10**30]
    assert call("def f():\n    print('noise')\n    return None").value is None
    assert call("if __name__ == '__main__':\n    1 / 0\ndef f():\n    return 1").value == 1


@pytest.mark.parametrize("value", ["{1, 2}", "object()", "lambda: 1", "(x := []).append(x) or x"])
def test_call_returning_no_json_value_is_no_crash(value: str) -> None:
    execution = call(f"def f():\n    return {value}")
    assert (execution.status, execution.is_json) == ("ok", False)


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("def g(): pass", "NameError: the code does not define f"),
        ("def f(): exit(0)", "ended without returning a value"),
        ("def f(): raise KeyError(1)", "KeyError: 1"),
        ("def f(x): return x", "TypeError"),
    ],
)
def test_call_run_time_errors(code: str, detail: str) -> None:
    execution = call(code)
    assert execution.status == "runtime_error"
    assert detail in execution.detail


def test_child_sees_neither_environment_nor_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_TEST_SECRET", "secret")
    code = "import os\nprint(sorted(os.environ), os.listdir('.'), os.getsid(0) == os.getpid())"
    stdout = run(code).stdout
    assert "SECRET" not in stdout
    assert stdout.strip().endswith("[] True")


def test_no_process_and_no_scratch_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    num_fds = len(os.listdir("/proc/self/fd"))
    marker = "987654.25"
    code = f"import subprocess\nopen('file', 'w').write('x')\nsubprocess.Popen(['sleep', '{marker}'])\nprint(1)\n"
    started = time.monotonic()
    execution = run(code)
    assert (execution.status, execution.stdout) == ("ok", "1\n")
    assert time.monotonic() - started < 4  # the grandchild keeps the pipes open, which must not hold us
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == num_fds
    for _ in range(50):
        if marker not in subprocess.run(["ps", "ax", "-o", "stat,args"], capture_output=True, text=True).stdout:
            return
        time.sleep(0.02)
    pytest.fail("the grandchild survived its group's SIGKILL")


def test_failure_to_start_is_infra_error_after_the_attempts() -> None:
    # No interpreter gets ready in 0.1 ms.
    execution = run("print(1)", limits=Limits(startup_s=1e-4, infra_attempts=2))
    assert execution.status == "infra_error"
    assert "did not get ready" in execution.detail


def test_limits_reject_nonsense() -> None:
    with pytest.raises(ValueError, match="limit test_s must be a number above 0, got 0"):
        Limits(test_s=0)
