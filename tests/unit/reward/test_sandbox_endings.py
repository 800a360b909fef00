"""A program ends as an interpreter ends: what it left unwritten is written, in the same order."""

import subprocess
import sys
import textwrap
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


def run(code: str, stdin: str = "3 4", fn_name: str | None = None, timeout_s: float = 4.0) -> Execution:
    program = Program(code=textwrap.dedent(code), stdin=stdin, fn_name=fn_name)
    return SANDBOX.execute(program, limits=Limits(), timeout_s=timeout_s)


SUM = "sum(map(int, input().split()))"
LEFT_UNWRITTEN = {
    "writer": f"out = open(1, 'w')\nout.write(str({SUM}))",
    "bytes_writer": f"out = open(1, 'wb')\nout.write(b'%d' % {SUM})",
    "two_writers": f"""
        import os
        print({SUM}, file=os.fdopen(1, "w", closefd=False))
        out = os.fdopen(1, "w", closefd=False)
        out.write("second")
    """,
    "swapped": f"""
        import io, sys
        real, sys.stdout = sys.stdout, io.StringIO()
        print("noise")
        real.write(str({SUM}))
    """,
    "wrapper": f"import io, sys\nout = io.TextIOWrapper(sys.stdout.buffer)\nout.write(str({SUM}))",
    "wrapper_as_stdout": f"import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint({SUM})",
    "held_by_the_library": "import contextlib\ncontextlib.out = open(1, 'w')\ncontextlib.out.write('7')",
    "held_by_a_handler": """
        import signal
        out = open(1, "w")
        signal.signal(signal.SIGTERM, lambda *_: out)
        out.write("7")
    """,
    "closed_stdout": "import sys\nprint(7)\nsys.stdout.close()",
    "no_stdout": "import sys\nprint(7)\nsys.stdout.flush()\ndel sys.stdout",
    "del": "class A:\n    def __del__(self): print('end')\na = A()",
    "del_in_a_cycle": "class A:\n    def __del__(self): print('end')\na = A()\na.a = a\ndel a",
    "del_in_a_frame": "class A:\n    def __del__(self): print('end')\ndef f(a): raise SystemExit\nf(A())",
    "del_with_names": """
        import sys
        from typing import Optional
        class A:
            def __del__(self): sys.stdout.write(word)
        def f(a: Optional[A]): pass
        word, a = "end", A()
    """,
    "order": """
        import atexit, weakref
        class A:
            def __init__(self, name): self.name = name
            def __del__(self): print("del", self.name)
        cycle = A("cycle")
        cycle.cycle = cycle
        del cycle
        one, two = A("one"), A("two")
        weakref.finalize(one, print, "finalize")
        atexit.register(print, "atexit")
        atexit.register(lambda: print("first"))
    """,
    "order_without_functions": """
        import atexit, io, os
        late, early = open(1, "w", closefd=False), open(os.dup(1), "w")
        late.write("late "), early.write("early "), print("stdout", end=" ")
        atexit.register(os.write, 1, b"atexit ")
    """,
    "generator": "def f():\n    try: yield\n    finally: print('end')\ng = f()\nnext(g)",
    "del_raises": "class A:\n    def __del__(self): print(7), 1 / 0\na = A()",
    "thread": "import threading, time\nt = threading.Thread(target=lambda: (time.sleep(0.1), print(7)))\nt.start()",
    "detached": "import sys, codecs\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\nprint(7)",
    "wrapped_anew": "import sys, io\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint(7)",
    "detached_errors": "import sys, io\nsys.stderr = io.TextIOWrapper(sys.stderr.detach())\nprint(7)",
    "exit_after_swap": "import io, sys\nprint(7)\nsys.stdout = io.StringIO()\nraise SystemExit(0)",
}


@pytest.mark.parametrize("name", LEFT_UNWRITTEN)
def test_what_is_left_unwritten_is_written_as_by_an_interpreter(name: str) -> None:
    code = textwrap.dedent(LEFT_UNWRITTEN[name])
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", code], input="3 4", capture_output=True, text=True)
    assert bare.returncode == 0 and bare.stdout
    execution = run(code)
    assert (execution.status, execution.stdout) == ("ok", bare.stdout)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os\nprint(7)\nos.close(1)", 120),
        ("import sys\nsys.stdout = 3", 120),
        ("import sys\nsys.stderr = 3\nexit(3)", 120),
        ("class A:\n    def __str__(self): 1 / 0\nraise SystemExit(A())", 1),
        ("import atexit\natexit.register(lambda: 1 / 0)\nexit(5)", 5),
        ("exit(2**63)", 255),
        ("exit(-(10**30))", 255),
    ],
)
def test_exit_status_is_that_of_an_interpreter(code: str, status: int) -> None:
    bare = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True)
    assert bare.returncode == status
    execution = run(code)
    assert execution.status == "runtime_error"
    if "exit status" in execution.detail:
        assert execution.detail == f"exit status {status}"


def test_calls_end_in_the_same_way() -> None:
    code = """
        import sys
        class A:
            def __del__(self):
                open("f", "w").write("x")
                while word: pass
        word, a = "end", A()
        def f(): return 7
    """
    assert run(code, fn_name="f", timeout_s=0.5).status == "time_out"
    assert (
        run("class A:\n    def __del__(self): 1 / 0\na = A()\ndef f(): return 7", fn_name="f").result == b'["value", 7]'
    )
    assert run("out = open(1, 'w')\ndef f(): out.write('7'); return 7", fn_name="f").result == b'["value", 7]'


def test_an_end_that_hangs_meets_the_deadline() -> None:
    for code in ("class A:\n    def __del__(self):\n        while True: pass\na = A()", "import sys\nsys.stdout = A()"):
        program = f"class A:\n    def flush(self):\n        while True: pass\n{code}"
        execution = SANDBOX.execute(Program(code=program), limits=Limits(), timeout_s=0.3)
        assert execution.status == "time_out"
