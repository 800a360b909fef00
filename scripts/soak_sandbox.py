"""Run many programs in a row, good and bad, and fail if anything piles up.

    python scripts/soak_sandbox.py [--runs 100000] [--drivers 2]

Watched: memory of this process, the zygotes and the slots; their open descriptors; processes; scratch files. Prints one
line each tenth of the runs; exit status 1 if the last differs from the first by more than the tolerance.
"""

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from reward.limits import Limits
from reward.sandbox import LocalSandbox, Program, arguments_text

LIMITS = Limits(test_s=20.0, memory_bytes=256 << 20)
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
SLOW = (Program(code="while True: pass"), "time_out")  # once in each thousand
TOLERATED_RSS_KB = 4096


def measure(sandbox: LocalSandbox) -> dict[str, int]:
    """What must not grow."""
    slots = [slot.pid for slots in sandbox._idle.values() for slot in slots]
    pids = [*slots, *(zygote.pid for zygote in sandbox._zygotes.values())]
    scratch = [zygote.scratch for zygote in sandbox._zygotes.values()]
    return {
        "rss_kb_here": _rss_kb(os.getpid()),
        "rss_kb_sandbox": sum(map(_rss_kb, pids)),
        "fds_here": len(os.listdir("/proc/self/fd")),
        "fds_sandbox": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "processes": sum(_num_descendants(zygote.pid) for zygote in sandbox._zygotes.values()),
        "scratch_folders": sum(len(os.listdir(folder)) for folder in scratch),
        "scratch_files": sum(len(os.listdir(f"/proc/{pid}/cwd")) for pid in slots),
    }


def _rss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def _num_descendants(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return len(children) + sum(_num_descendants(int(child)) for child in children)


def soak(*, num_runs: int, num_drivers: int) -> list[dict[str, int]]:
    """Run them; returns what was measured after a warm-up and after each tenth.

    Raises:
        AssertionError: a program ended otherwise than it must.
    """
    sandbox = LocalSandbox(num_slots=num_drivers)

    def run(index: int) -> None:
        program, status = SLOW if index % 1000 == 999 else PROGRAMS[index % len(PROGRAMS)]
        timeout_s = 0.2 if program is SLOW[0] else LIMITS.test_s
        execution = sandbox.execute(program, limits=LIMITS, timeout_s=timeout_s)
        assert execution.status == status, (program, execution)

    def drive(driver: int, indices: range) -> None:
        for index in indices[driver::num_drivers]:
            run(index)

    def run_all(indices: range) -> None:
        with ThreadPoolExecutor(num_drivers) as pool:
            list(pool.map(drive, range(num_drivers), [indices] * num_drivers))

    run_all(range(max(200, num_runs // 100)))
    measured = [measure(sandbox)]
    for tenth in range(10):
        started = time.monotonic()
        run_all(range(tenth * num_runs // 10, (tenth + 1) * num_runs // 10))
        measured.append(measure(sandbox))
        rate = num_runs / 10 / (time.monotonic() - started)
        print(f"{(tenth + 1) * 10:>3} % {rate:6.0f} runs/s  {measured[-1]}", flush=True)
    sandbox.close()
    return measured


def leaks(measured: list[dict[str, int]]) -> list[str]:
    """What grew from the first tenth to the last: memory beyond the tolerance, anything else at all."""
    first, last = measured[1], measured[-1]
    return [
        f"{name}: {first[name]} to {last[name]}"
        for name in first
        if last[name] - first[name] > (TOLERATED_RSS_KB if name.startswith("rss") else 0)
    ]


def main() -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--drivers", type=int, default=2, help="programs that run at a time")
    arguments = parser.parse_args()
    found = leaks(soak(num_runs=arguments.runs, num_drivers=arguments.drivers))
    print(f"leaks: {'; '.join(found) or 'none'}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
