"""Standard input and output are what programs expect them to be."""

import fcntl
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.limits import Limits
from reward.sandbox import Execution, LocalSandbox, Program
from reward.sandbox.jail.output import Output
from reward.sandbox.standard_streams import StandardInput, output_pipe

REPOSITORY = Path(__file__).parents[3]
SANDBOX: LocalSandbox


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    global SANDBOX
    SANDBOX = LocalSandbox(num_slots=1)
    yield
    SANDBOX.close()


def run(code: str, stdin: str = "", limits: Limits = Limits()) -> Execution:  # noqa: B008
    return SANDBOX.execute(Program(code=textwrap.dedent(code), stdin=stdin), limits=limits, timeout_s=4.0)


def test_a_program_calls_itself_as_deep_as_in_an_interpreter_of_its_own() -> None:
    code = "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\nprint(f(0))"
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 <= int(run(code).stdout) - int(bare.stdout) <= 4


@pytest.mark.parametrize("num_bytes", [0, 3, 65_536, 65_537, 900_000, 1 << 20, (1 << 20) + 1, 5_000_000])
@pytest.mark.parametrize("start", ["import sys", "import sys, selectors"])
def test_input_of_any_length_arrives(num_bytes: int, start: str) -> None:
    execution = run(f"{start}\nprint(len(sys.stdin.read()))", stdin="x" * num_bytes)
    assert (execution.status, execution.stdout) == ("ok", f"{num_bytes}\n")


@pytest.mark.parametrize(
    "code",
    [
        "import io, os\nprint(sum(map(int, io.BytesIO(os.read(0, os.fstat(0).st_size)).readline().split())))",
        "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ).readline().split())))",
        "import sys\nsys.stdin.read()\nsys.stdin.seek(0)\nprint(sum(map(int, sys.stdin.read().split())))",
    ],
)
def test_input_is_a_file_for_most_programs(code: str) -> None:
    assert run(code, stdin="3 4\n").stdout == "7\n"


ASYNCIO = """
    import asyncio, sys
    async def main():
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        print(sum(map(int, (await reader.read()).split())))
    asyncio.run(main())
"""
ADD_READER = """
    import asyncio, os
    async def main():
        loop = asyncio.get_running_loop()
        line = loop.create_future()
        loop.add_reader(0, lambda: line.done() or line.set_result(os.read(0, 100)))
        print(sum(map(int, (await line).split())))
    asyncio.run(main())
"""
SELECTORS = """
    import selectors, sys
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    [(key, _)] = waiting.select()
    print(sum(map(int, key.fileobj.readline().split())))
"""
EPOLL = """
    import select, sys
    waiting = select.epoll()
    waiting.register(0)
    assert waiting.poll()
    print(sum(map(int, sys.stdin.read().split())))
"""


@pytest.mark.parametrize("code", [ASYNCIO, ADD_READER, SELECTORS, EPOLL])
def test_input_is_a_pipe_for_programs_that_wait_for_it(code: str) -> None:
    execution = run(code, stdin="3 4\n")
    assert (execution.status, execution.stdout) == ("ok", "7\n"), execution.detail


@pytest.mark.parametrize("start", ["import sys", "import sys, selectors"])
def test_input_can_be_opened_by_name(start: str) -> None:
    assert run(f"{start}\nprint(open('/dev/stdin').read(), open(0).read())", stdin="7").stdout.startswith("7 ")


def test_output_is_a_pipe() -> None:
    code = "import os, stat, sys\nprint(stat.S_ISFIFO(os.fstat(1).st_mode), sys.stdout.seekable())"
    assert run(code).stdout == "True False\n"


def test_input_that_no_pipe_can_hold_is_a_file() -> None:
    for num_bytes in (10, 1 << 20, (1 << 20) + 1):
        with open(StandardInput(content=b"x" * num_bytes, as_pipe=True).open(None), "rb") as file:
            assert file.seekable() is (num_bytes > 1 << 20)
            assert file.read() == b"x" * num_bytes


def test_output_by_several_ways_keeps_its_order() -> None:
    code = """
        import os
        print(1, flush=True)
        with open("/dev/stdout", "w") as file: print(2, file=file)
        os.write(1, b"3\\n")
        with open(1, "w", closefd=False) as file: print(4, file=file)
        print(5)
    """
    assert run(code).stdout == "1\n2\n3\n4\n5\n"


@pytest.mark.parametrize("num_bytes", [65_536, 262_145, 900_000, 1 << 20])
def test_output_up_to_the_limit_arrives(num_bytes: int) -> None:
    execution = run(f"import sys\nsys.stdout.write('x' * {num_bytes})")
    assert (execution.status, len(execution.stdout)) == ("ok", num_bytes)


def test_output_over_the_limit_ends_the_program_at_once() -> None:
    execution = run("while True: print('x' * 1000)")
    assert (execution.status, execution.detail) == ("output_limit", "more than 1048576 bytes of output")
    assert execution.seconds < 2.0
    assert (
        run("print('x' * 100, flush=True)\nwhile True: pass", limits=Limits(output_bytes=100)).status == "output_limit"
    )


def test_output_is_drained_often_while_there_is_much_of_it(tmp_path: Path) -> None:
    reader, writer = output_pipe(None)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # as where the user has many pipes
    file = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    output = Output(reader, file, 6000)
    pauses = []
    for num_bytes in (0, 4096, 0, 0):
        os.write(writer, b"x" * num_bytes)
        assert output.drain()
        pauses.append(output.pause_s)
    assert pauses == [0.008, 0.001, 0.002, 0.004]
    os.write(writer, b"x" * 4096)
    assert not output.drain()
    assert os.fstat(file).st_size == 6001
    os.close(writer)
    output.close()


def test_output_in_packets_arrives() -> None:
    start = "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)\n"
    execution = run(start + "for n in range(200): os.write(1, b'%d ' % n)")
    assert execution.stdout.split() == [str(n) for n in range(200)]


def test_a_program_may_close_its_output_and_go_on() -> None:
    code = "import os, time\nprint(7, flush=True)\nos.close(1)\ntime.sleep(0.3)"
    assert run(code).stdout == "7\n"


def test_output_read_back_by_the_program_hangs_nobody() -> None:
    code = """
        import os
        os.write(1, b"abc")
        print(os.read(os.open("/dev/stdout", os.O_RDONLY), 2).decode())
    """
    assert run(code).stdout == "cab\n"


def test_zygotes_have_standard_streams_where_the_trusted_process_has_none(tmp_path: Path) -> None:
    code = """
        import sys
        from reward.limits import Limits
        from reward.sandbox import LocalSandbox, Program
        sandbox = LocalSandbox(num_slots=1)
        execution = sandbox.execute(Program(code="print(input())", stdin="7"), limits=Limits(), timeout_s=5)
        sandbox.close()
        open(sys.argv[1], "w").write(f"{execution.status} {execution.stdout}")
    """
    answer = tmp_path / "answer"
    for closing in ("2>&-", "0<&- 1>&- 2>&-"):
        command = ["sh", "-c", f'"$@" {closing}', "sh", sys.executable, "-c", textwrap.dedent(code), str(answer)]
        subprocess.run(command, cwd=REPOSITORY, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
        assert answer.read_text() == "ok 7\n"
        answer.unlink()
