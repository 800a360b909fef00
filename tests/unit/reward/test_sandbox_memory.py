"""Memory that no limit of the kernel's counts is counted by the slot."""

from collections.abc import Iterator

import pytest

from reward.limits import Limits
from reward.sandbox import LocalSandbox, Program

SANDBOX: LocalSandbox
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


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    global SANDBOX
    SANDBOX = LocalSandbox(num_slots=1)
    yield
    SANDBOX.close()


@pytest.mark.parametrize("start", START.values(), ids=START)
def test_page_tables_count(start: str) -> None:
    execution = SANDBOX.execute(Program(code=f"{FAR_APART}\n{start}"), limits=Limits(), timeout_s=10.0)
    assert (execution.status, execution.detail) == ("memory_limit", "memory in too many places")


def test_page_tables_of_ordinary_memory_do_not_count() -> None:
    code = "import time\nx = bytearray(900 << 20)\nx[::4096] = b'x' * (900 << 8)\ntime.sleep(0.3)\nprint(7)"
    execution = SANDBOX.execute(Program(code=code), limits=Limits(), timeout_s=10.0)
    assert execution.stdout == "7\n", execution.detail
