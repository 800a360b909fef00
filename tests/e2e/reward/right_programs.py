"""Unusual but right programs as data: each prints in the sandbox what it prints as a bare subprocess, and ends well.

All have the same standard input, `NUMBERS` or `LONG`, and use nothing that the sandbox's limits rule out.
"""

import textwrap

NUMBERS = "3 4\n5 6\n\n7 8\n"
LONG = "".join(f"{number} {number * 7919 % 1000}\n" for number in range(90_000))  # 900 KiB

_READING = {
    "input_until_eof": """
        try:
            while True: print(input().split())
        except EOFError: print("end")
    """,
    "iter_readline": "import sys\nfor line in iter(sys.stdin.readline, ''): print(line.rstrip()[::-1])",
    "open_0": "print(*map(sum, (map(int, line.split()) for line in open(0))))",
    "fdopen": "import os\nprint(*os.fdopen(0), sep='|')",
    "dev_stdin": "print(open('/dev/stdin').read().split())",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(fileinput.lineno(), line, end='')",
    "fast_input": """
        import io, os
        input = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline
        print(input(), input())
    """,
    "mmap": "import mmap\nwith mmap.mmap(0, 0, access=mmap.ACCESS_READ) as m: print(m.readline(), m.find(b'8'))",
    "read_twice": "import sys\nprint(len(sys.stdin.read()), sys.stdin.seek(0), len(sys.stdin.read()))",
    "select": "import select, sys\nprint(select.select([sys.stdin], [], [], 5)[0] == [sys.stdin], input())",
}
_WRITING = {
    "print_and_os_write": "import os\nprint(1, flush=True)\nos.write(1, b'2\\n')\nprint(3)",
    "print_and_buffer": "import sys\nprint(1)\nsys.stdout.flush()\nsys.stdout.buffer.write(b'2\\n')\nprint(3)",
    "dev_stdout": "print(1, flush=True)\nopen('/dev/stdout', 'w').write('2\\n')\nprint(3)",
    "buffered_writer": "import io, sys\nout = io.BufferedWriter(io.FileIO(1, 'w'), 1 << 16)\nout.write(b'7' * 1000)",
    "string_io_at_exit": """
        import atexit, io, os, sys
        sys.stdout = io.StringIO()
        atexit.register(lambda: os.write(1, sys.stdout.getvalue().encode()))
        print(7)
    """,
    "reconfigured": "import sys\nsys.stdout.reconfigure(line_buffering=True, newline='\\r\\n')\nprint('a')\nprint('b')",
    "unicode": "print('\\N{GREEK SMALL LETTER PI} \\U0001f600 \\u05d0')",
    "dup2": """
        import os
        kept = os.dup(1)
        os.dup2(os.open("f", os.O_CREAT | os.O_WRONLY), 1)
        print("file", flush=True)
        os.dup2(kept, 1)
        print(open("f").read())
    """,
    "900_kib_in_lines": "for number in range(140_000): print(number)",
    "900_kib_flushed": "for number in range(900): print('x' * 1023, flush=True)",
}
_ENDING = {
    "finalize_now": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'gone')\ndel a\nprint('main')",
    "generator_left": "def g():\n    try: yield 1\n    finally: print('closed')\nkept = g()\nprint(next(kept))",
    "exception_hook": "import sys\nsys.unraisablehook = lambda u: print(type(u.exc_value))\n"
    "class A:\n    def __del__(self): 1 / 0\nA()",
}
_WAITING = {
    "100_threads": """
        from concurrent.futures import ThreadPoolExecutor
        import threading
        barrier = threading.Barrier(100)
        with ThreadPoolExecutor(100) as pool: print(sum(pool.map(lambda n: barrier.wait() * 0 + n, range(100))))
    """,
    "thread_pool": "from multiprocessing.pool import ThreadPool\nprint(ThreadPool(3).starmap(pow, [(2, 3), (3, 2)]))",
    "thread_after_main": "import threading, time\nthreading.Timer(0.05, print, ('late',)).start()\nprint('main')",
    "big_stack": """
        import sys, threading
        sys.setrecursionlimit(10**6)
        threading.stack_size(128 << 20)
        def depth(n): return n and 1 + depth(n - 1)
        t = threading.Thread(target=lambda: print(depth(50_000)))
        t.start(), t.join()
    """,
    "daemon_left": """
        import threading, time
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
        print(7)
    """,
    "asyncio_stdout": """
        import asyncio, sys
        async def main():
            loop = asyncio.get_running_loop()
            transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sys.stdout)
            transport.write(b"7" * 1000)
            transport.close()
        asyncio.run(main())
    """,
    "asyncio_threads": """
        import asyncio
        async def main():
            print(await asyncio.to_thread(input), await asyncio.get_running_loop().run_in_executor(None, input))
            print(await asyncio.gather(*(asyncio.sleep(0.01 * n, n) for n in (2, 1))))
        asyncio.run(main())
    """,
    "signals": """
        import signal, time
        signal.signal(signal.SIGALRM, lambda number, frame: print("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(0.2)
        signal.signal(signal.SIGUSR1, lambda number, frame: print("raised"))
        signal.raise_signal(signal.SIGUSR1)
    """,
}
_LONG_INPUT = {
    "sum": "print(sum(map(int, open(0).read().split())))",
    "echo": "import sys\nsys.stdout.write(sys.stdin.read())",
    "echo_os": "import os\nwhile part := os.read(0, 1 << 16): os.write(1, part)",
    "numpy": """
        import sys
        import numpy as np
        print(np.array(sys.stdin.read().split(), dtype=int).reshape(-1, 2).sum(0))
    """,
}

RIGHT_PROGRAMS = {
    f"{group}-{name}": (textwrap.dedent(code), stdin)
    for group, programs, stdin in (
        ("reading", _READING, NUMBERS),
        ("writing", _WRITING, NUMBERS),
        ("ending", _ENDING, NUMBERS),
        ("waiting", _WAITING, NUMBERS),
        ("long_input", _LONG_INPUT, LONG),
    )
    for name, code in programs.items()
}
