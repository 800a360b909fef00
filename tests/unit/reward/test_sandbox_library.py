"""What the standard library and numpy do in a sandbox as they do outside."""

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from reward.limits import Limits
from reward.sandbox import Execution, LocalSandbox, Program

REPOSITORY = Path(__file__).parents[3]
SANDBOX: LocalSandbox


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    global SANDBOX
    SANDBOX = LocalSandbox(num_slots=1)
    yield
    SANDBOX.close()


def run(code: str) -> Execution:
    return SANDBOX.execute(Program(code=textwrap.dedent(code)), limits=Limits(), timeout_s=4.0)


@pytest.mark.parametrize("numpy", ["", "import numpy\n"])
@pytest.mark.parametrize(
    "code",
    [
        "from multiprocessing.pool import ThreadPool\nwith ThreadPool(4) as p: print(sum(p.map(int, '1123')))",
        "from multiprocessing.dummy import Pool\np = Pool(4)\nprint(sum(p.imap_unordered(int, '1123')))",
        "from multiprocessing.dummy import Process\np = Process(target=print, args=(7,))\np.start()\np.join()",
        "from concurrent.futures import ThreadPoolExecutor\nprint(sum(ThreadPoolExecutor(4).map(int, '1123')))",
    ],
)
def test_pools_of_threads(code: str, numpy: str) -> None:
    execution = run(numpy + code)
    assert (execution.status, execution.stdout) == ("ok", "7\n"), execution.detail


def test_locks_of_multiprocessing_among_threads() -> None:
    code = """
        import multiprocessing, threading
        lock, again, two = multiprocessing.Lock(), multiprocessing.RLock(), multiprocessing.BoundedSemaphore(2)
        with lock, again, again:
            print(lock.acquire(False), lock.acquire(timeout=0.01), again.acquire())
            again.release()
            threading.Thread(target=lambda: print(again.acquire(False))).start()
        print(two.acquire(), two.acquire(), two.acquire(timeout=0.01), two.get_value())
        for _ in range(3):
            try: two.release()
            except ValueError as error: print(error)
        try: again.release()
        except AssertionError as error: print(error)
        queue = multiprocessing.Queue()
        threading.Thread(target=queue.put, args=(7,)).start()
        print(queue.get(), lock, again, two)
    """
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", textwrap.dedent(code)], capture_output=True, text=True)
    execution = run(code)
    assert bare.returncode == 0 and bare.stdout.count("\n") == 6
    assert (execution.status, execution.stdout) == ("ok", bare.stdout), execution.detail


@pytest.mark.parametrize(
    "body",
    [
        "async with asyncio.timeout(5): print(7)",
        "async with asyncio.TaskGroup() as group: group.create_task(asyncio.sleep(0)); print(7)",
        "print(7 * (asyncio.current_task() in asyncio.all_tasks()))",
    ],
)
def test_asyncio_knows_its_tasks(body: str) -> None:
    if sys.version_info < (3, 11) and "async with" in body:
        pytest.skip("younger than this interpreter")
    execution = run(f"import asyncio\nasync def main():\n    {body}\nasyncio.run(main())")
    assert (execution.status, execution.stdout) == ("ok", "7\n"), execution.detail


ZONE = """
    from datetime import datetime
    from zoneinfo import ZoneInfo
    print(datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")))
"""


def test_time_zones() -> None:
    assert run(ZONE).stdout == "2024-07-01 00:00:00+02:00\n"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs mounts of its own")
def test_time_zones_of_the_package_where_the_machine_has_none() -> None:
    code = f"""
        from reward.limits import Limits
        from reward.sandbox import LocalSandbox, Program
        sandbox = LocalSandbox(num_slots=1)
        print(sandbox.execute(Program(code={textwrap.dedent(ZONE)!r}), limits=Limits(), timeout_s=5).stdout)
        sandbox.close()
    """
    hide = 'mount -t tmpfs none /usr/share/zoneinfo && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c"]
    if subprocess.run([*command, "import tzdata"], capture_output=True).returncode:
        pytest.skip("no mounts of its own, or no tzdata")
    done = subprocess.run([*command, textwrap.dedent(code)], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stdout == "2024-07-01 00:00:00+02:00\n\n", done.stderr


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
    assert run("import os\nprint(os.nice(0), os.nice(1))").stdout == "0 1\n"


@pytest.mark.parametrize("call", ["nice(-1)", "setpriority(os.PRIO_PGRP, 0, 1)", "setpriority(os.PRIO_USER, 0, 1)"])
def test_priorities_of_others_and_higher_ones_are_refused(call: str) -> None:
    assert run(f"import os\nos.{call}").detail.startswith("PermissionError")
