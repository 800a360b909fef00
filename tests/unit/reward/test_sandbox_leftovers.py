"""A program finds nothing of the programs before it in its slot's memory and files, nor in the page cache."""

import pytest
from in_sandbox import run

from reward.sandbox import arguments_text

# Reads every page of the heap, and those near the collector's objects, what is freed there too. A pipe tells which
# pages there are. The pattern does not match itself.
WALK = r"""
import ctypes, gc, os, re
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
reader, writer = os.pipe()
def page(address):
    if libc.write(writer, ctypes.c_void_p(address), 4096) == 4096:
        return os.read(reader, 4096)
pages, address = [], libc.sbrk(0) - 4096
while found := page(address):
    pages.append(found)
    address -= 4096
pages.reverse()
near = {(id(thing) >> 20) + step for thing in gc.get_objects() for step in (-2, -1, 0, 1, 2)}
pages += [page((block << 20) + 4096 * n) or b"" for block in sorted(near) for n in range(256)]
print(sorted(set(re.findall(rb"MARK[_]7391_\w+", b"".join(pages)))), len(pages) > 1000)
"""
FRAMES = """
import sys
frame, names = sys._getframe(), []
while frame:
    names += [name for name, value in frame.f_locals.items() if type(value).__name__ == "_Run"]
    frame = frame.f_back
print(names)
"""


def marked(what: str) -> str:
    """An expression whose text is no mark."""
    return f"'MARK_%d_{what}' % 7391"


def test_memory_holds_nothing_of_the_programs_before() -> None:
    before = {
        f"for size in (1, 30, 500): print({marked('printed')} * size)": "ok",
        "'MARK_7391_code'\nimport sys\nprint(len(sys.stdin.read()))": "ok",
        f"raise ValueError({marked('error')})": "runtime_error",
        f"def f(MARK_7391_name{'e' * 600}): global MARK_7391_name{'e' * 600}": "compile_error",
    }
    for code, status in before.items():
        for _ in range(3):
            assert run(code, stdin="MARK_7391_input").status == status
    function = f"def f(x):\n    print({marked('called')})\n    return {marked('value')}"
    call = run(function, fn_name="f", arguments=arguments_text([7]))
    assert call.result
    assert run(WALK).stdout == "[] True\n"


def test_frames_hold_nothing_of_the_runs_before() -> None:
    run("print(7)")
    assert run(FRAMES).stdout == "[]\n"


@pytest.mark.parametrize(
    "look",
    ["flock(file, fcntl.LOCK_SH)", "fcntl(file, fcntl.F_GETLK, WRITE_LOCK)", "fcntl(file, 36, WRITE_LOCK)"],
)
def test_no_program_sees_another_ones_locks_on_a_file_of_the_library(look: str) -> None:
    code = f"""
import fcntl, os, struct
WRITE_LOCK = struct.pack("hhqqiI", fcntl.F_WRLCK, 0, 0, 0, 0, 0)
try: file = os.open(os.path.join(os.path.dirname(os.__file__), "this.py"), os.O_RDONLY)
except PermissionError: file = os.open("this.py", os.O_RDONLY, dir_fd=3)  # an interpreter in a closed folder
fcntl.lockf(file, fcntl.LOCK_SH)
print("locked")
try: print(fcntl.{look})
except PermissionError: print("refused")
"""
    execution = run(code)
    assert (execution.status, execution.stdout) == ("ok", "locked\nrefused\n"), execution.detail


def test_what_is_in_the_page_cache_cannot_be_seen_nor_changed() -> None:
    code = """
import ctypes, mmap, os
fd = os.open("f", os.O_RDWR | os.O_CREAT)
os.write(fd, b"page")
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
print(os.preadv(fd, [bytearray(4)], 0), os.pwritev(fd, [b"1"], 0))
memory = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_DONTNEED)
for attempt in (
    lambda: os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT),
    lambda: os.pwritev(fd, [b"1"], 0, os.RWF_SYNC),
    lambda: memory.madvise(20),
    lambda: memory.madvise(21),
):
    try:
        print("done", attempt())
    except OSError as error:
        print(error.errno)
page, found = ctypes.c_void_p(id(fd) & ~4095), ctypes.create_string_buffer(9)
print(ctypes.CDLL(None, use_errno=True).mincore(page, 4096, found), ctypes.get_errno())
"""
    assert run(code).stdout == "4 1\n95\n95\n22\n22\n-1 1\n"


def test_clocks_of_other_processes_cannot_be_read() -> None:
    code = """
import os, threading, time
print([time.clock_gettime(clock) >= 0 for clock in range(8)], time.process_time() > 0, time.thread_time() > 0)
print(time.clock_gettime(time.pthread_getcpuclockid(threading.get_ident())) > 0, time.clock_getres(1) > 0)
for ask in (time.clock_gettime, time.clock_getres):
    try:
        print("seen", ask((~os.getppid() << 3) | 2))
    except OSError as error:
        print(error.errno)
"""
    everything = "[True, True, True, True, True, True, True, True]"
    assert run(code).stdout == f"{everything} True True\nTrue True\n22\n22\n"
