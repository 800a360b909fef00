"""What counts against the limit of time: processors, and of the wall clock a part."""

import time
from collections.abc import Iterator

import pytest

from reward.limits import Limits
from reward.sandbox import Execution, LocalSandbox, Program

SANDBOX: LocalSandbox


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    global SANDBOX
    SANDBOX = LocalSandbox(num_slots=1)
    yield
    SANDBOX.close()


def run(code: str, timeout_s: float = 5.0) -> Execution:
    return SANDBOX.execute(Program(code=code), limits=Limits(), timeout_s=timeout_s)


def test_time_used_is_that_of_processors_and_a_third_of_the_wall_clocks() -> None:
    assert 0.2 < run("import time\nwhile time.process_time() < 0.25: pass").seconds < 1
    assert 0.2 < run("import time; time.sleep(0.75)").seconds < 0.7
    assert run("import time; time.sleep(1.2)", timeout_s=0.5).status == "ok"
    assert run("import time; time.sleep(1.2)", timeout_s=0.3).status == "time_out"


BUSY_THREADS = """
import hashlib, threading, time
started = time.monotonic()
def work():
    for _ in range({}): hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.process_time(), time.monotonic() - started)
"""


def test_threads_share_one_core_and_one_limit_of_time() -> None:
    execution = run(BUSY_THREADS.format(5))
    cpu_s, wall_s = map(float, execution.stdout.split())
    assert wall_s > 0.7 * cpu_s
    assert 0.9 * cpu_s < execution.seconds
    execution = run(BUSY_THREADS.format(1000), timeout_s=0.6)
    assert execution.status == "time_out"
    assert 0.6 <= execution.seconds < 1.2


def test_a_program_that_stops_itself_stays_stopped() -> None:
    started = time.monotonic()
    assert run("import os\nos.kill(os.getpid(), 19)\nprint(1)", timeout_s=0.4).status == "time_out"
    assert time.monotonic() - started > 1.1
