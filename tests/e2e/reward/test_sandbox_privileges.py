"""The hostile programs again on weaker machines: fewer capabilities, an ordinary user, no /proc."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
on_hostile_programs = pytest.mark.parametrize(
    "programs", ["WHERE_RIGHTS_MATTER", pytest.param("HOSTILE_PROGRAMS", marks=pytest.mark.slow)]
)
REPOSITORY = Path(__file__).parents[3]
TABLES = {"hostile_programs.py", "hostile_escapes.py", "hostile_kernel.py"}
# What Docker gives root by default.
CONTAINER_CAPABILITIES = (
    "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,"
    "+sys_chroot,+mknod,+audit_write,+setfcap"
)
SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import hostile_programs
from reward.limits import Limits
from reward.sandbox import Program, Sandbox
sandbox = Sandbox(num_slots=4)
limits = Limits(memory_bytes=256 << 20)
def run(program):
    # What must end by itself is given long, for a busy machine.
    timeout_s = 0.8 if "time_out" in program.outcomes else 10.0
    execution = sandbox.execute(Program(code=program.code, stdin="3 4"), limits=limits, timeout_s=timeout_s)
    return program.name, program.outcomes, execution.status, execution.stdout[:1000], sum_in_an_empty_folder()
def sum_in_an_empty_folder():
    code = "import os\\nassert os.listdir('.') == []\\nprint(sum(map(int, input().split())))"
    return sandbox.execute(Program(code=code, stdin="3 4"), limits=limits, timeout_s=10).stdout
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: sum_in_an_empty_folder(), range(8)))
    slots = set(sandbox._slots)
    results = list(pool.map(run, getattr(hostile_programs, sys.argv[1])))
num_lost = len(slots - sandbox._slots)
layers = sandbox.layers
sandbox.close()
print(json.dumps({"layers": layers, "results": results, "num_lost": num_lost}))
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder for every user: pytest closes its own to others as soon as another run of it begins."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def run_script(command: list[str], tmp_path: Path, programs: str = "", *, script: str = SCRIPT) -> Any:
    """Run a script, which can import, where an ordinary user could not read this folder, the tables of programs."""
    tables, scratch = tmp_path / "e2e" / "tables", tmp_path / "scratch"
    shutil.copytree(Path(__file__).parent, tables, ignore=lambda folder, names: set(names) - TABLES)
    shutil.copytree(REPOSITORY / "tests" / "helpers", tmp_path / "helpers", ignore=lambda *_: {"__pycache__"})
    scratch.mkdir()
    for folder in (tmp_path, *tmp_path.rglob("*")):
        folder.chmod(0o777)
    environment = {"PYTHONPATH": f"{REPOSITORY}:{tables}", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(scratch)}
    done = subprocess.run([*command, "-c", script, programs], capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []
    return json.loads(done.stdout)


def assert_all_contained(found: dict, *, run_as_root: bool = False) -> None:
    assert len(found["results"]) > 80 and found["num_lost"] == 0
    for name, outcomes, status, stdout, next_stdout in found["results"]:
        assert status in ["ok" if outcome == "fail" else outcome for outcome in outcomes], (name, status)
        assert next_stdout == "7\n", name
        if not run_as_root or name != "setuid_root":
            assert "escaped" not in stdout, (name, stdout)


def missing_layers(found: dict) -> list[str]:
    return [name for name, reason in found["layers"].items() if reason]


@needs_setpriv
@on_hostile_programs
@pytest.mark.parametrize(
    ("capabilities", "why_no_user"),
    [
        pytest.param(CONTAINER_CAPABILITIES, "", id="a default container"),
        pytest.param("-all", ": programs run as root", id="without capabilities", marks=pytest.mark.slow),
        pytest.param("-kill", "Operation not permitted", id="may not kill others", marks=pytest.mark.slow),
    ],
)
def test_root_with_fewer_capabilities(tmp_path: Path, programs: str, capabilities: str, why_no_user: str) -> None:
    found = run_script(["setpriv", "--bounding-set", capabilities, sys.executable], tmp_path, programs)
    assert missing_layers(found) == (["uid"] if why_no_user else [])
    assert why_no_user in found["layers"]["uid"]
    assert_all_contained(found, run_as_root=bool(why_no_user))


@needs_setpriv
def test_without_proc_nothing_runs(tmp_path: Path) -> None:
    probe = f"umount -l /proc && exec {sys.executable} -m reward.sandbox --probe"
    environment = {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path)}
    command = ["unshare", "--mount", "sh", "-c", probe]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1].startswith("sandbox: refuses to run without supervision")


def interpreter_for_everybody() -> str | None:
    """One that an ordinary user may start; that of a test environment may lie under /root."""
    for path in filter(None, (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin"))):
        code = "import sys, reward.sandbox; assert sys.version_info >= (3, 10)"
        environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            command = [path, "-c", code]
            done = subprocess.run(command, env=environment, cwd="/", user=65534, group=65534, extra_groups=[])
        except PermissionError:
            continue
        if done.returncode == 0:
            return path
    return None


@needs_setpriv
def test_hidden_processes_are_no_obstacle(tmp_path: Path) -> None:
    hide = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]
    command = as_ordinary_user()
    script = """
import json
from reward.limits import Limits
from reward.sandbox import Sandbox, Program
sandbox = Sandbox(num_slots=1)
code = "import time; time.sleep(0.2); print(7)"
print(json.dumps(sandbox.execute(Program(code=code), limits=Limits(), timeout_s=4).stdout))
sandbox.close()
"""
    assert run_script([*hide, *command], tmp_path, script=script) == "7\n"


def as_ordinary_user(*, uid: int = 65534, max_processes: int | None = None) -> list[str]:
    """The start of a command that runs Python as this user."""
    interpreter = interpreter_for_everybody()
    if interpreter is None:
        pytest.skip("no interpreter that an ordinary user may start")
    limit = [] if max_processes is None else ["prlimit", f"--nproc={max_processes}"]
    return ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *limit, interpreter]


@needs_setpriv
@on_hostile_programs
def test_ordinary_user(tmp_path: Path, programs: str) -> None:
    found = run_script(as_ordinary_user(), tmp_path, programs)
    assert found["layers"]["uid"].startswith("not root")
    assert missing_layers(found) == ["uid"]
    assert_all_contained(found)


FLOOD = """
import json, threading, time
from reward.limits import Limits
from reward.sandbox import Sandbox, Program
flood = '''
import threading, time
threading.stack_size(32768)
end, count = time.monotonic() + 8, 0
while time.monotonic() < end:
    try: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
    except RuntimeError: break
    count += 1
time.sleep(0.5) # what looks at it does so twenty times a second
print(count, flush=True)
import os; os._exit(0)
'''
sandbox = Sandbox(num_slots=2)
run = lambda code: sandbox.execute(Program(code=code), limits=limits, timeout_s=4)
limits = Limits() # without the kernel's limit others may be refused until the flood is seen, and are tried again
found = [run("import ctypes").status]
def drive():
    execution = run(flood)
    found.append([execution.status, execution.detail])
thread = threading.Thread(target=drive)
thread.start()
for _ in range(20):
    assert run("print(7)").stdout == "7\\n"
thread.join()
sandbox.close()
print(json.dumps(found))
"""


@needs_setpriv
@pytest.mark.parametrize("user", ["ordinary", "root without capabilities"])
def test_no_program_takes_all_processes(tmp_path: Path, user: str) -> None:
    if user == "ordinary":
        command = as_ordinary_user(uid=61235, max_processes=400)
    else:
        command = ["setpriv", "--bounding-set", "-all", sys.executable]
    _, (status, detail) = run_script(command, tmp_path, script=FLOOD)
    assert (status, detail) == ("runtime_error", "RuntimeError: more than 128 threads")
