"""Programs that use lesser known ways of the kernel end as they must, on every kind of machine, and with their slot."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from reward.limits import Limits
from reward.sandbox import Program, Sandbox

pytestmark = pytest.mark.e2e


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hostile = _module("hostile_kernel")
privileges = _module("test_sandbox_privileges")
resources = _module("test_sandbox_resources")
SAME = frozenset(hostile.SAME_IN_EVERY_MODE)
needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
SCRIPT = """
import importlib.util, json, sys
from reward.limits import Limits
from reward.sandbox import Sandbox, Program
spec = importlib.util.spec_from_file_location("hostile_kernel", sys.argv[1])
hostile = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hostile)
sandbox = Sandbox(num_slots=1)
limits = Limits(memory_bytes=256 << 20)
known, slots = set(sys.argv[2:]), {slot.pid for slot in sandbox._slots}
programs = [program for program in hostile.HOSTILE_PROGRAMS if program.name not in known]
def run(code, timeout_s):
    execution = sandbox.execute(Program(code=code, stdin="3 4"), limits=limits, timeout_s=timeout_s)
    return execution.status, execution.stdout[:1000]
next_one = "import ctypes, os\\nassert os.listdir('.') == []\\nprint(sum(map(int, input().split())))"
found = []
for program in programs:
    # What must end by itself is given long, for a busy machine.
    status, stdout = run(program.code, 0.5 if "time_out" in program.outcomes else 10.0)
    outcomes = ["ok" if outcome == "fail" else outcome for outcome in program.outcomes]
    if status not in outcomes or "escaped" in stdout or run(next_one, 10.0) != ("ok", "7\\n"):
        found.append([program.name, status, stdout])
restarts = len({slot.pid for slot in sandbox._slots} - slots)
sandbox.close()
print(json.dumps([len(programs), restarts, found]))
"""


def assert_contained(command: list[str], tmp_path: Path, *, known: frozenset[str] = frozenset()) -> None:
    """Run all programs but those of `known` by this interpreter; none may harm another, or leave anything."""
    environment = {"PYTHONPATH": str(privileges.REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(tmp_path)}
    os.chmod(tmp_path, 0o777)
    table = tmp_path / "hostile_kernel.py"
    for name in ("hostile_kernel.py", "hostile_escapes.py"):  # an ordinary user may not read the others' folder
        shutil.copy(Path(__file__).with_name(name), tmp_path / name)
    arguments = [*command, "-c", SCRIPT, str(table), *known]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile_escapes.py", "hostile_kernel.py"]
    num_programs, num_restarts, found = json.loads(done.stdout)
    assert (num_programs, num_restarts, found) == (len(hostile.HOSTILE_PROGRAMS) - len(known), 0, [])


def test_kernel_ways(tmp_path: Path) -> None:
    assert_contained([sys.executable], tmp_path)


@needs_setpriv
@pytest.mark.parametrize(
    "capabilities", [privileges.CONTAINER_CAPABILITIES, "-all", "-kill"], ids=["container", "none", "no kill"]
)
def test_kernel_ways_with_fewer_capabilities(tmp_path: Path, capabilities: str) -> None:
    assert_contained(["setpriv", "--bounding-set", capabilities, sys.executable], tmp_path, known=SAME)


@needs_setpriv
def test_kernel_ways_of_an_ordinary_user(tmp_path: Path) -> None:
    assert_contained(privileges.as_ordinary_user(tmp_path), tmp_path, known=SAME)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):  # a first thread that has ended is a zombie, though others live
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] != "Z" or int(fields[17]) > 1
    return False


@pytest.mark.parametrize("name", ["spin", "sleep"])
def test_no_program_without_its_first_thread_outlives_its_slot(name: str) -> None:
    sandbox = Sandbox(num_slots=1)
    limits = Limits(infra_attempts=1)

    def run(code: str) -> None:
        sandbox.execute(Program(code=code), limits=limits, timeout_s=60.0)

    slot = sandbox._idle["standard"][0].pid
    code = f"import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n{hostile.LEADERLESS[name][0]}"
    thread = threading.Thread(target=run, args=(code,))
    thread.start()
    try:
        resources.wait_for(lambda: any(map(_has_lost_its_leader, resources.children_of(slot))))
        (program,) = filter(_has_lost_its_leader, resources.children_of(slot))
        os.kill(slot, signal.SIGKILL)
        resources.wait_for(lambda: not _is_alive(program))
    finally:
        sandbox.close()
        thread.join()


def _has_lost_its_leader(pid: int) -> bool:
    with contextlib.suppress(OSError):  # ended meanwhile
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] == "Z" and int(fields[17]) > 1
    return False
