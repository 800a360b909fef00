"""A right program's verdict does not depend on what runs beside it."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
REPOSITORY = Path(__file__).parents[3]
STARVATION = """
import threading, time
from reward.limits import Limits
from reward.sandbox import Sandbox, Program
sandbox = Sandbox(num_slots=2)
run = lambda code, s: sandbox.execute(Program(code=code), limits=Limits(), timeout_s=s)
right = "import time\\nwhile time.process_time() < 1.2: pass\\nprint('right')"
bomb = '''
import hashlib, threading, time
threading.stack_size(65536)
def work():
    while True: hashlib.pbkdf2_hmac("sha256", b"x" * 8, b"y" * 8, 20_000)
for _ in range(100): threading.Thread(target=work, daemon=True).start()
time.sleep(99)
'''
run("import hashlib", 4)
for _ in range(3):
    thread = threading.Thread(target=run, args=(bomb, 4))
    thread.start()
    time.sleep(0.2)
    execution = run(right, 4)
    print(execution.status, 1.1 < execution.seconds < 2)
    thread.join()
sandbox.close()
"""


def new_cpu_group() -> Path | None:
    """A control group, as a container has: in the machine's own, the kernel groups processes by their session.

    Its share is large, so that what else runs on the machine does not decide.
    """
    for parent in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")):
        with contextlib.suppress(OSError):
            group = parent / f"reward-test-{os.getpid()}"
            group.mkdir()
            for file, share in (("cpu.shares", "10240"), ("cpu.weight", "1000")):
                if (group / file).exists():
                    (group / file).write_text(share)
                    return group
            group.rmdir()
    return None


def test_a_right_program_passes_beside_a_hundred_busy_threads() -> None:
    group = new_cpu_group()
    enter = "" if group is None else f"echo $$ > {group}/cgroup.procs && "
    command = ["sh", "-c", f'{enter}exec "$0" -c "$1"', sys.executable, STARVATION]
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    finally:
        if group is not None:
            group.rmdir()
    assert (done.stdout, done.stderr) == ("ok True\n" * 3, "")


QUEUES = """
import os, subprocess, sys
from reward.limits import Limits
from reward.sandbox import Sandbox, Program
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
sandbox = Sandbox(num_slots=1)
run = lambda code: sandbox.execute(Program(code="import time\\n" + code), limits=Limits(), timeout_s=0.5)
run("")
spin = [sys.executable, "-c", "while True: pass"]
others = [subprocess.Popen(spin, start_new_session=True) for _ in range(3)]
try:
    execution = run("while time.process_time() < 0.25: pass")
    print(execution.status, 0.2 < execution.seconds < 0.5)
    print(run("time.sleep(2)").status, run("while True: pass").status)
finally:
    for other in others:
        other.kill()
    sandbox.close()
"""


def test_time_in_the_queue_for_a_processor_does_not_count() -> None:
    done = subprocess.run([sys.executable, "-c", QUEUES], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ok True\ntime_out time_out\n", "")
