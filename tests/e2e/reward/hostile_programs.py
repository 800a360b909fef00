"""Hostile programs as data: one row a program, with the outcomes that may end it.

`escaped` must never be printed: each program prints it only where it got what it was after.
"""

import runpy
import textwrap
from pathlib import Path

from hostile_escapes import ANY_ERROR, ERROR, ESCAPES, OUTPUT_LIMIT, TIME_OUT, WRONG, Hostile
from hostile_kernel import KERNEL_WAYS, SAME_IN_EVERY_MODE

HUNT = runpy.run_path(str(Path(__file__).parents[2] / "helpers" / "hunt.py"))["HUNT"]

# Where a limit is reached by work only, a busy machine's clock may be first.
BOMBS = {
    "fork_bomb": ("import os\nwhile True: os.fork()", ERROR),
    "stubborn_fork_bomb": (
        "import os\nwhile True:\n    try: os.fork() and print('escaped', flush=True)\n    except OSError: pass",
        TIME_OUT,
    ),
    "thread_bomb": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        ("runtime_error", "time_out"),
    ),
    "bytearray": ("x = bytearray(1 << 34)", ("memory_limit",)),
    "slow_leak": ("x = []\nwhile True: x.append(bytes(1 << 20))", ("memory_limit", *TIME_OUT)),
    "print_flood": ("while True: print('x' * 1000)", (*OUTPUT_LIMIT, *TIME_OUT)),
    "fd_flood": ("import os\nwhile True: os.write(1, b'x' * 65536)", (*OUTPUT_LIMIT, *TIME_OUT)),
    "ignored_flood": (
        "import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass",
        (*OUTPUT_LIMIT, *TIME_OUT),
    ),
    "huge_line": ("print('x' * (8 << 20), end='')", (*OUTPUT_LIMIT, *TIME_OUT)),
    "big_number": ("x = 9**9**9", ANY_ERROR),
    "folding_bomb": ("x = ((((2**64)**64)**64)**64)**64\nprint(x)", ANY_ERROR),
    "redos": ("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", TIME_OUT),
    "zlib_bomb": (
        "import zlib\nx = zlib.compress(bytes(64 << 20))\ny = []\nwhile True: y.append(zlib.decompress(x))",
        ("memory_limit", "time_out"),
    ),
    "recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", ANY_ERROR),
    "c_stack": ("import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)", ANY_ERROR),
    "nested_source": ("x = " + "(" * 3000 + ")" * 3000, ("compile_error",)),
    "nested_lists": ("x = " + "[" * 100 + "]" * 100 + "\nprint(x)", WRONG),
    "segfault": ("import ctypes\nctypes.string_at(0)", ERROR),
    "big_file": ("f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))", (*ERROR, *TIME_OUT)),
    "many_files": ("for i in range(10**7): open(str(i), 'w').close()", (*OUTPUT_LIMIT, *TIME_OUT)),
    "many_big_files": (
        "for i in range(10**7):\n    with open(str(i), 'wb') as f: f.write(bytes(8 << 20))",
        (*OUTPUT_LIMIT, *TIME_OUT),
    ),
    "unlinked_files": (
        "import os\ntotal = 0\ntry:\n    for _ in range(6):\n"
        "        fd = os.open('f', os.O_RDWR | os.O_CREAT)\n        os.unlink('f')\n"
        "        for _ in range(15): total += os.write(fd, bytes(1 << 20))\n"
        "except OSError: pass\nif total > 65 << 20: print('escaped', flush=True)\nos._exit(0)",
        ("fail", *OUTPUT_LIMIT),
    ),
    "sparse_file": ("open('f', 'wb').truncate(1 << 40)", ERROR),
}
STALLS = {
    "spin": ("while True: pass", TIME_OUT),
    "sleep": ("import time\ntime.sleep(99)", TIME_OUT),
    "ignore_signals": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        TIME_OUT,
    ),
    "stop_self": ("import os\nos.kill(os.getpid(), 19)", TIME_OUT),
    "close_stdout": ("import os, time\nos.close(1)\ntime.sleep(99)", TIME_OUT),
    "close_all": ("import os\nos.closerange(0, 64)\nwhile True: pass", TIME_OUT),
    "slow_drip": ("import time\nwhile True: print('.', flush=True); time.sleep(0.05)", TIME_OUT),
    "timer": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)\nwhile True: pass",
        TIME_OUT,
    ),
    "atexit_spin": ("import atexit\n@atexit.register\ndef f():\n    while True: pass", TIME_OUT),
    "join_forever": ("import threading\nthreading.Thread(target=threading.Event().wait).start()", TIME_OUT),
}
FORGERIES = {
    "hunt": (HUNT, WRONG),
    "patched_comparator": (
        "import sys\nfor name, module in list(sys.modules.items()):\n"
        "    for key in list(vars(module)):\n"
        "        if 'match' in key or 'compare' in key: setattr(module, key, lambda *a, **k: True)\nprint('x')",
        WRONG,
    ),
    "exit_now": ("import os\nos._exit(0)", WRONG),
    "exit_0": ("raise SystemExit(0)", WRONG),
    "exit_none": ("raise SystemExit", WRONG),
    "exit_text": ("raise SystemExit('EXPECTED')", ERROR),
    "exit_in_thread": ("import threading\ndef f(): raise SystemExit(0)\nthreading.Thread(target=f).start()", WRONG),
    "forged_control": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'ready compiled passed')\n    except OSError: pass",
        WRONG,
    ),
    "marker": ("print('compiled', {'value': 'passed', 'returncode': 0})", WRONG),
    "result": ('print(\'{"value": true, "status": "ok"}\')', WRONG),
    "trace": (
        "import sys, threading\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n"
        "threading.settrace(lambda *a: None)\nprint(1)",
        WRONG,
    ),
    "surrogates": ("print('\\ud800 \\0')", ("fail", "runtime_error")),
    "invalid_utf8": ("import os\nos.write(1, bytes(range(256)))", WRONG),
    "surrogate_source": ("x = '\ud800'", ("compile_error",)),
    "nul_source": ("x = '\0'", ("compile_error",)),
    "odd_text": ("# \u202e\u200d\nx\u200d = 1", ("compile_error",)),
    "broken_builtins": (
        "import builtins\nfor name in ('input', 'print', 'open', '__build_class__', '__import__', 'compile'):\n"
        "    setattr(builtins, name, None)",
        WRONG,
    ),
    "no_stdout": ("import sys\nsys.stdout = None", WRONG),
    "forged_stdout": ("import sys\nsys.stdout = sys.__stdout__ = 3", ("fail", "runtime_error")),
    "poison": (
        "import random, sys, json, math\nrandom.seed(0)\nsys.path.clear()\nsys.modules.clear()\n"
        "math.floor = json.loads = None\nopen('left', 'w').write('poison')",
        ("fail", "runtime_error"),
    ),
    "hook": ("import sys\nsys.excepthook = lambda *a: sys.exit(0)\n1 / 0", ERROR),
    "del_at_exit": ("class A:\n    def __del__(self): print('EXPECTED')\na = A()", WRONG),
}

_TABLES = (BOMBS, STALLS, ESCAPES, FORGERIES, KERNEL_WAYS)
HOSTILE_PROGRAMS = [
    Hostile(name=name, code=textwrap.dedent(code), outcomes=outcomes)
    for table in _TABLES
    for name, (code, outcomes) in table.items()
]
_BY_RIGHTS = {
    "fork_bomb",
    "stubborn_fork_bomb",
    "thread_bomb",
    "slow_leak",
    "fd_flood",
    "ignore_signals",
    "stop_self",
    "close_all",
    "big_file",
    "many_files",
    "many_big_files",
    "unlinked_files",
    "sparse_file",
    "hunt",
    *(ESCAPES.keys() | KERNEL_WAYS.keys() - SAME_IN_EVERY_MODE),
}
WHERE_RIGHTS_MATTER = [program for program in HOSTILE_PROGRAMS if program.name in _BY_RIGHTS]
"""What the rights of the trusted process have a part in: its users, namespaces and disk, and whom it may end. The other
programs meet the same limits and the same judge whoever runs them."""
