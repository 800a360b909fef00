"""What counts against the limits of time and memory."""

import pytest
from in_sandbox import run


def test_time_used_is_that_of_processors_and_a_third_of_the_wall_clocks() -> None:
    assert run("import time\nwhile time.process_time() < 0.25: pass").seconds > 0.2
    assert run("import time; time.sleep(0.75)").seconds > 0.2
    assert run("import time; time.sleep(2)", timeout_s=1.8).status == "ok"
    assert run("import time; time.sleep(9)", timeout_s=0.3).status == "time_out"


BUSY_THREADS = """
import hashlib, threading, time
def work():
    for _ in range({}): hashlib.pbkdf2_hmac("sha256", b"x", b"y", 20_000)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.process_time())
"""


def test_threads_share_one_limit_of_time() -> None:
    execution = run(BUSY_THREADS.format(5))
    assert 0.9 * float(execution.stdout) < execution.seconds
    execution = run(BUSY_THREADS.format(1000), timeout_s=0.6)
    assert execution.status == "time_out"
    assert execution.seconds >= 0.6


FAR_APART = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
mmap = libc.mmap
mmap.restype = ctypes.c_void_p
mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
def work():
    for n in range(62_000):
        page = mmap((1 << 33) + (n << 30), 4096, 3, 0x100022, -1, 0)
        if page not in (None, ctypes.c_void_p(-1).value): ctypes.memset(page, 1, 1)
    while True: pass
"""
START = {
    "first": "work()",
    "without first": "import threading\nthreading.Thread(target=work).start()\nctypes.CDLL(None).syscall(60, 0)",
}


@pytest.mark.parametrize("start", START.values(), ids=START)
def test_page_tables_count(start: str) -> None:
    execution = run(f"{FAR_APART}\n{start}", timeout_s=10.0)
    assert (execution.status, execution.detail) == ("memory_limit", "memory in too many places")


def test_page_tables_of_ordinary_memory_do_not_count() -> None:
    code = "import time\nx = bytearray(900 << 20)\nx[::4096] = b'x' * (900 << 8)\ntime.sleep(0.3)\nprint(7)"
    execution = run(code, timeout_s=10.0)
    assert execution.stdout == "7\n", execution.detail
