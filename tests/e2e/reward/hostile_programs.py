"""Hostile programs as data: one row a program, with the outcomes that may end it.

`escaped` must never be printed: each program prints it only where it got what it was after.
"""

import importlib.util
import runpy
from pathlib import Path

HUNT = runpy.run_path(str(Path(__file__).parents[2] / "helpers" / "hunt.py"))["HUNT"]
_SPEC = importlib.util.spec_from_file_location("hostile_escapes", Path(__file__).with_name("hostile_escapes.py"))
assert _SPEC is not None and _SPEC.loader is not None
_escapes = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_escapes)
Hostile, ESCAPES = _escapes.Hostile, _escapes.ESCAPES
ERROR, ANY_ERROR, WRONG = _escapes.ERROR, _escapes.ANY_ERROR, _escapes.WRONG
TIME_OUT, OUTPUT_LIMIT = _escapes.TIME_OUT, _escapes.OUTPUT_LIMIT

# Where a limit is reached by work only, a busy machine's clock may be first.
BOMBS = [
    Hostile(name="fork_bomb", code="import os\nwhile True: os.fork()", outcomes=ERROR),
    Hostile(
        name="stubborn_fork_bomb",
        code="import os\nwhile True:\n    try: os.fork() and print('escaped', flush=True)\n    except OSError: pass",
        outcomes=TIME_OUT,
    ),
    Hostile(
        name="thread_bomb",
        code="import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        outcomes=("runtime_error", "time_out"),
    ),
    Hostile(name="bytearray", code="x = bytearray(1 << 34)", outcomes=("memory_limit",)),
    Hostile(
        name="slow_leak", code="x = []\nwhile True: x.append(bytes(1 << 20))", outcomes=("memory_limit", *TIME_OUT)
    ),
    Hostile(name="print_flood", code="while True: print('x' * 1000)", outcomes=(*OUTPUT_LIMIT, *TIME_OUT)),
    Hostile(
        name="fd_flood", code="import os\nwhile True: os.write(1, b'x' * 65536)", outcomes=(*OUTPUT_LIMIT, *TIME_OUT)
    ),
    Hostile(
        name="ignored_flood",
        code="import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass",
        outcomes=(*OUTPUT_LIMIT, *TIME_OUT),
    ),
    Hostile(name="huge_line", code="print('x' * (8 << 20), end='')", outcomes=(*OUTPUT_LIMIT, *TIME_OUT)),
    Hostile(name="big_number", code="x = 9**9**9", outcomes=ANY_ERROR),
    Hostile(name="folding_bomb", code="x = ((((2**64)**64)**64)**64)**64\nprint(x)", outcomes=ANY_ERROR),
    Hostile(name="redos", code="import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", outcomes=TIME_OUT),
    Hostile(
        name="zlib_bomb",
        code="import zlib\nx = zlib.compress(bytes(64 << 20))\ny = []\nwhile True: y.append(zlib.decompress(x))",
        outcomes=("memory_limit", "time_out"),
    ),
    Hostile(name="recursion", code="import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", outcomes=ANY_ERROR),
    Hostile(
        name="c_stack",
        code="import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
        outcomes=ANY_ERROR,
    ),
    Hostile(name="nested_source", code="x = " + "(" * 3000 + ")" * 3000, outcomes=("compile_error",)),
    Hostile(name="nested_lists", code="x = " + "[" * 100 + "]" * 100 + "\nprint(x)", outcomes=WRONG),
    Hostile(name="segfault", code="import ctypes\nctypes.string_at(0)", outcomes=ERROR),
    Hostile(
        name="big_file", code="f = open('f', 'wb')\nwhile True: f.write(bytes(1 << 20))", outcomes=(*ERROR, *TIME_OUT)
    ),
    Hostile(
        name="many_files", code="for i in range(10**7): open(str(i), 'w').close()", outcomes=(*OUTPUT_LIMIT, *TIME_OUT)
    ),
    Hostile(
        name="many_big_files",
        code="for i in range(10**7):\n    with open(str(i), 'wb') as f: f.write(bytes(8 << 20))",
        outcomes=(*OUTPUT_LIMIT, *TIME_OUT),
    ),
    Hostile(
        name="unlinked_files",
        code="import os\ntotal = 0\ntry:\n    for _ in range(6):\n"
        "        fd = os.open('f', os.O_RDWR | os.O_CREAT)\n        os.unlink('f')\n"
        "        for _ in range(15): total += os.write(fd, bytes(1 << 20))\n"
        "except OSError: pass\nif total > 65 << 20: print('escaped', flush=True)\nos._exit(0)",
        outcomes=("fail", *OUTPUT_LIMIT),
    ),
    Hostile(name="sparse_file", code="open('f', 'wb').truncate(1 << 40)", outcomes=ERROR),
]

STALLS = [
    Hostile(name="spin", code="while True: pass", outcomes=TIME_OUT),
    Hostile(name="sleep", code="import time\ntime.sleep(99)", outcomes=TIME_OUT),
    Hostile(
        name="ignore_signals",
        code="import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        outcomes=TIME_OUT,
    ),
    Hostile(name="stop_self", code="import os\nos.kill(os.getpid(), 19)", outcomes=TIME_OUT),
    Hostile(name="close_stdout", code="import os, time\nos.close(1)\ntime.sleep(99)", outcomes=TIME_OUT),
    Hostile(name="close_all", code="import os\nos.closerange(0, 64)\nwhile True: pass", outcomes=TIME_OUT),
    Hostile(
        name="slow_drip", code="import time\nwhile True: print('.', flush=True); time.sleep(0.05)", outcomes=TIME_OUT
    ),
    Hostile(
        name="timer",
        code="import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)\nwhile True: pass",
        outcomes=TIME_OUT,
    ),
    Hostile(
        name="atexit_spin", code="import atexit\n@atexit.register\ndef f():\n    while True: pass", outcomes=TIME_OUT
    ),
    Hostile(
        name="join_forever",
        code="import threading\nthreading.Thread(target=threading.Event().wait).start()",
        outcomes=TIME_OUT,
    ),
]

FORGERIES = [
    Hostile(name="hunt", code=HUNT, outcomes=WRONG),
    Hostile(
        name="patched_comparator",
        code="import sys\nfor name, module in list(sys.modules.items()):\n"
        "    for key in list(vars(module)):\n"
        "        if 'match' in key or 'compare' in key: setattr(module, key, lambda *a, **k: True)\nprint('x')",
        outcomes=WRONG,
    ),
    Hostile(name="exit_now", code="import os\nos._exit(0)", outcomes=WRONG),
    Hostile(name="exit_0", code="raise SystemExit(0)", outcomes=WRONG),
    Hostile(name="exit_none", code="raise SystemExit", outcomes=WRONG),
    Hostile(name="exit_text", code="raise SystemExit('EXPECTED')", outcomes=ERROR),
    Hostile(
        name="exit_in_thread",
        code="import threading\ndef f(): raise SystemExit(0)\nthreading.Thread(target=f).start()",
        outcomes=WRONG,
    ),
    Hostile(
        name="forged_control",
        code="import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'ready compiled passed')\n"
        "    except OSError: pass",
        outcomes=WRONG,
    ),
    Hostile(name="marker", code="print('compiled', {'value': 'passed', 'returncode': 0})", outcomes=WRONG),
    Hostile(name="result", code='print(\'{"value": true, "status": "ok"}\')', outcomes=WRONG),
    Hostile(
        name="trace",
        code="import sys, threading\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n"
        "threading.settrace(lambda *a: None)\nprint(1)",
        outcomes=WRONG,
    ),
    Hostile(name="surrogates", code="print('\\ud800 \\0')", outcomes=("fail", "runtime_error")),
    Hostile(name="invalid_utf8", code="import os\nos.write(1, bytes(range(256)))", outcomes=WRONG),
    Hostile(name="surrogate_source", code="x = '\ud800'", outcomes=("compile_error",)),
    Hostile(name="nul_source", code="x = '\0'", outcomes=("compile_error",)),
    Hostile(name="odd_text", code="# \u202e\u200d\nx\u200d = 1", outcomes=("compile_error",)),
    Hostile(
        name="broken_builtins",
        code="import builtins\nfor name in ('input', 'print', 'open', '__build_class__', '__import__', 'compile'):\n"
        "    setattr(builtins, name, None)",
        outcomes=WRONG,
    ),
    Hostile(name="no_stdout", code="import sys\nsys.stdout = None", outcomes=WRONG),
    Hostile(
        name="forged_stdout", code="import sys\nsys.stdout = sys.__stdout__ = 3", outcomes=("fail", "runtime_error")
    ),
    Hostile(
        name="poison",
        code="import random, sys, json, math\nrandom.seed(0)\nsys.path.clear()\nsys.modules.clear()\n"
        "math.floor = json.loads = None\nopen('left', 'w').write('poison')",
        outcomes=("fail", "runtime_error"),
    ),
    Hostile(name="hook", code="import sys\nsys.excepthook = lambda *a: sys.exit(0)\n1 / 0", outcomes=ERROR),
    Hostile(
        name="del_at_exit",
        code="class A:\n    def __del__(self): print('EXPECTED')\na = A()",
        outcomes=WRONG,
    ),
]

HOSTILE_PROGRAMS = [*BOMBS, *STALLS, *ESCAPES, *FORGERIES]

_BY_RIGHTS = {
    *("fork_bomb", "stubborn_fork_bomb", "thread_bomb", "slow_leak", "fd_flood", "ignore_signals", "stop_self"),
    *("close_all", "big_file", "many_files", "many_big_files", "unlinked_files", "sparse_file", "hunt"),
}
WHERE_RIGHTS_MATTER = [*ESCAPES, *(program for program in HOSTILE_PROGRAMS if program.name in _BY_RIGHTS)]
"""What the rights of the trusted process have a part in: its users, namespaces and disk, and whom it may end. The other
programs meet the same limits and the same judge whoever runs them."""
