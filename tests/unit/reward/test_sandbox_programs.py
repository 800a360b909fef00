"""Programs find in the sandbox what an interpreter of their own gives them: streams, modules, names, an end."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from in_sandbox import run

from reward.apps import score_response
from reward.limits import Limits
from reward.problem import Problem

REPOSITORY = Path(__file__).parents[3]


def test_a_program_calls_itself_as_deep_as_in_an_interpreter_of_its_own() -> None:
    code = "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0))"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 <= int(run(code).stdout) - int(bare.stdout) <= 4


@pytest.mark.parametrize("num_bytes", [0, 3, 65_537, 1 << 20, 5_000_000])
def test_input_of_any_length_arrives(num_bytes: int) -> None:
    execution = run("import sys\nprint(len(sys.stdin.read()))", stdin="x" * num_bytes)
    assert (execution.status, execution.stdout) == ("ok", f"{num_bytes}\n")


def test_output_is_a_pipe() -> None:
    code = "import os, stat, sys\nprint(stat.S_ISFIFO(os.fstat(1).st_mode), sys.stdout.seekable())"
    assert run(code).stdout == "True False\n"


@pytest.mark.parametrize("num_bytes", [65_536, 1 << 20])
def test_output_up_to_the_limit_arrives(num_bytes: int) -> None:
    execution = run(f"import sys\nsys.stdout.write('x' * {num_bytes})")
    assert (execution.status, len(execution.stdout)) == ("ok", num_bytes)


def test_output_over_the_limit_ends_the_program_at_once() -> None:
    execution = run("while True: print('x' * 1000)")
    assert (execution.status, execution.detail) == ("output_limit", "more than 1048576 bytes of output")
    assert (
        run("print('x' * 100, flush=True)\nwhile True: pass", limits=Limits(output_bytes=100)).status == "output_limit"
    )


def test_output_in_packets_arrives() -> None:
    start = "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)\n"
    execution = run(start + "for n in range(200): os.write(1, b'%d ' % n)")
    assert execution.stdout.split() == [str(n) for n in range(200)]


def test_a_program_may_close_its_output_and_go_on() -> None:
    code = "import os, time\nprint(7, flush=True)\nos.close(1)\ntime.sleep(0.3)"
    assert run(code).stdout == "7\n"


def test_slots_have_standard_streams_where_the_trusted_process_has_none() -> None:
    code = """
        import os, sys
        from reward.limits import Limits
        from reward.sandbox import Sandbox, Program
        sandbox = Sandbox(num_slots=1)
        execution = sandbox.execute(Program(code="print(input())", stdin="7"), limits=Limits(), timeout_s=5)
        sandbox.close()
        print(execution.stdout)
    """
    command = ["sh", "-c", '"$@" 0<&- 2>&-', "sh", sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True).stdout == "7\n\n"


SUM = "sum(map(int, input().split()))"
LEFT_UNWRITTEN = {
    "writer": f"out = open(1, 'w')\nout.write(str({SUM}))",
    "swapped": f"""
        import io, sys
        real, sys.stdout = sys.stdout, io.StringIO()
        print("noise")
        real.write(str({SUM}))
    """,
    "wrapper_as_stdout": f"import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\nprint({SUM})",
    "no_stdout": "import sys\nprint(7)\nsys.stdout.flush()\ndel sys.stdout",
    "del": "class A:\n    def __del__(self): print('end')\na = A()",
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
    "del_raises": "class A:\n    def __del__(self): print(7), 1 / 0\na = A()",
    "exit_after_swap": "import io, sys\nprint(7)\nsys.stdout = io.StringIO()\nraise SystemExit(0)",
}


@pytest.mark.parametrize("name", LEFT_UNWRITTEN)
def test_what_is_left_unwritten_is_written_as_by_an_interpreter(name: str) -> None:
    code = textwrap.dedent(LEFT_UNWRITTEN[name])
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", code], input="3 4", capture_output=True, text=True)
    assert bare.returncode == 0 and bare.stdout
    execution = run(code, "3 4")
    assert (execution.status, execution.stdout) == ("ok", bare.stdout)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os\nprint(7)\nos.close(1)", 120),
        ("class A:\n    def __str__(self): 1 / 0\nraise SystemExit(A())", 1),
        ("import atexit\natexit.register(lambda: 1 / 0)\nexit(5)", 5),
        ("exit(2**63)", 255),
    ],
)
def test_exit_status_is_that_of_an_interpreter(code: str, status: int) -> None:
    bare = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True)
    assert bare.returncode == status
    execution = run(code)
    assert execution.status == "runtime_error"
    if "exit status" in execution.detail:
        assert execution.detail == f"exit status {status}"


def test_an_end_that_hangs_meets_the_deadline() -> None:
    for code in ("class A:\n    def __del__(self):\n        while True: pass\na = A()", "import sys\nsys.stdout = A()"):
        program = f"class A:\n    def flush(self):\n        while True: pass\n{code}"
        assert run(program, timeout_s=0.3).status == "time_out"


def test_asyncio_knows_its_tasks() -> None:
    body = "print(7 * (asyncio.current_task() in asyncio.all_tasks()))"
    assert run(f"import asyncio\nasync def main():\n    {body}\nasyncio.run(main())").stdout == "7\n"


ZONE = """
    from datetime import datetime
    from zoneinfo import ZoneInfo
    print(datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")))
"""


def test_time_zones() -> None:
    assert run(ZONE).stdout == "2024-07-01 00:00:00+02:00\n"


@pytest.mark.parametrize("draw", ["numpy.random.randint(1 << 30)", "numpy.random.default_rng().random()"])
def test_programs_draw_other_random_numbers(draw: str) -> None:
    assert len({run(f"import numpy\nprint({draw})").stdout for _ in range(3)}) == 3


def test_a_seed_of_the_program_holds() -> None:
    assert len({run("import numpy\nnumpy.random.seed(1)\nprint(numpy.random.rand())").stdout for _ in range(2)}) == 1


def test_names_and_calls_that_an_interpreter_has() -> None:
    assert run(
        "import os\nprint(os.path.basename(__file__), os.path.isdir(os.path.dirname(os.path.abspath(__file__))))"
    ).stdout == ("solution.py True\n")
    assert run("help(abs)").stdout.startswith("Help on built-in function abs")


@pytest.mark.parametrize("call", ["nice(-1)", "setpriority(os.PRIO_PGRP, 0, 1)", "setpriority(os.PRIO_USER, 0, 1)"])
def test_priorities_of_others_and_higher_ones_are_refused(call: str) -> None:
    assert run(f"import os\nos.{call}").detail.startswith("PermissionError")


PROGRAMS = {
    "pi": "π = 15\nprint(π)",
    "beside numpy": "import numpy as np\nλ = 15\nprint(np.int64(λ))",
    "a character's name": "print(15 if '\\N{DEGREE SIGN}' == '°' else 0)",
    "numpy on a second line": "import sys, \\\n    numpy as np\nprint(np.int64(15))",
    "numpy by function": "np = __import__('numpy')\nprint(np.int64(15))",
    "shift_jis by keyword": "print(15 if b'ab'.decode(encoding=\"shift_jis\") else 0)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_find_what_they_use(name: str) -> None:
    problem = Problem.from_input_output({"inputs": ["5\n"], "outputs": ["15\n"]}, problem_id=name)
    score = score_response(problem, f"```python\n{PROGRAMS[name]}\n```")
    assert score.outcome == "pass", score.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [[2], [3]], "outputs": [6, 9], "fn_name": "f"},
        {"test_code": ["assert f(2) == 6", "π = 3\nassert f(3) == 3 * π"], "fn_name": "f"},
    ],
)
def test_functions_may_have_names_beyond_ascii(fields: dict) -> None:
    problem = Problem.from_input_output(fields, problem_id=7)
    assert score_response(problem, "```python\ndef f(x):\n    π = 3\n    return π * x\n```").outcome == "pass"
