"""Many programs in a row, good and bad: no memory, descriptor, process or file piles up."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reward.limits import Limits
from reward.sandbox import Program, Sandbox, arguments_text

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
LIMITS = Limits(test_s=20.0, memory_bytes=256 << 20)
NUM_RUNS = 1000
PROGRAMS = [  # with the status that each must end with
    (Program(code="print(int(input()) + 1)", stdin="3"), "ok"),
    (Program(code="def f(x):\n    return [x, (x,)]", fn_name="f", arguments=arguments_text([3])), "ok"),
    (Program(code="import datetime\nprint(datetime.date(2020, 1, 1))"), "ok"),
    (Program(code="open('left', 'w').write('x' * 10000)"), "ok"),
    (Program(code="import threading\nthreading.Thread(target=print).start()"), "ok"),
    (Program(code="1 / 0"), "runtime_error"),
    (Program(code="x = ("), "compile_error"),
    (Program(code="x = bytearray(1 << 34)"), "memory_limit"),
    (Program(code="import os\nos.kill(os.getpid(), 9)"), "runtime_error"),
    (Program(code="print('x' * 2_000_000)"), "output_limit"),
]
TOLERATED_RSS_KB = 4096


def rss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_nothing_piles_up() -> None:
    sandbox = Sandbox(num_slots=2)

    def run(index: int) -> None:
        program, status = PROGRAMS[index % len(PROGRAMS)]
        execution = sandbox.execute(program, limits=LIMITS, timeout_s=LIMITS.test_s)
        assert execution.status == status, (program, execution)

    def measured_after_runs() -> tuple[list[int], int]:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range(NUM_RUNS)))
        pids = [slot.pid for slot in sandbox._slots]
        children = [Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in pids]
        files = [os.listdir(slot.scratch) for slot in sandbox._slots]
        assert not any(children) and not any(files)
        folders = ["/proc/self/fd", *(f"/proc/{pid}/fd" for pid in pids)]
        return [len(os.listdir(folder)) for folder in folders], sum(map(rss_kb, [os.getpid(), *pids]))

    num_fds, before_kb = measured_after_runs()
    assert len(sandbox._slots) == 2
    after = measured_after_runs()
    assert after[0] == num_fds
    assert after[1] - before_kb <= TOLERATED_RSS_KB
    sandbox.close()
