"""A right program's verdict does not depend on what runs beside it."""

import pytest
from in_sandbox import run_python

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
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
    done = run_python(QUEUES)
    assert (done.stdout, done.stderr) == ("ok True\ntime_out time_out\n", "")
