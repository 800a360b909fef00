"""The fork server and its stand-ins, without Ray; of all imports a job shares, torch alone, which each worker needs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recipe.preload import SOCKET_VARIABLE, STAND_IN

DRIVER = '''
import contextlib, json, os, psutil, pwd, signal, subprocess, sys
from recipe import preload
from recipe.preload import modules, server
modules.ENGINE, modules.JOB = ("torch",), ()
worker = server.start(modules.Device(engine=(), job=()))
if worker is not None:
    worker.run()
    sys.exit()
from waiting import PATIENCE_S, comes_true, is_alive

def run(code, *, environment=(), **options):
    command = [str(preload.STAND_IN), "-c", code, "--multiprocessing-fork"]
    done = subprocess.run(
        command, env={**os.environ, **dict(environment)}, capture_output=True, text=True, timeout=PATIENCE_S, **options
    )
    return [done.returncode, done.stdout.strip(), done.stderr.strip()[-300:]]

def asks(pid):
    for number in range(3, 20):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                return True
    return False

WHO = "import os, sys; print(os.getppid() == int(os.environ['DRIVER']), os.getcwd(), *sys.argv)"
ours, theirs = os.pipe()
environment = {"DRIVER": str(os.getpid()), "RAY_JOB_ID": "1"}
found = {
    "who": run(WHO, environment=environment, cwd="/"),
    "exit": run("import sys; sys.exit(5)", environment=environment),
    "raise": run("raise KeyError('here')", environment=environment),
    "signal": run("import os; os.kill(os.getpid(), 9)", environment=environment),
    "output": run("import os; os.write(1, b'out'); os.write(2, b'err')", environment=environment),
    "descriptor": run(f"import os; os.write({theirs}, b'through')", environment=environment, pass_fds=[theirs]),
    "through": os.read(ours, 100).decode(),
    "input": run("print(input()[::-1])", environment=environment, input="abc"),
    "other job": run("print('plain')", environment={**environment, "RAY_JOB_ID": "2"}),
    "no socket": run("print('plain')", environment={**environment, preload.SOCKET_VARIABLE: "nobody"}),
}
if os.geteuid() == 0:
    import socket
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.seteuid(65534)
    connection.connect("\\0" + os.environ[preload.SOCKET_VARIABLE])
    found["other user"] = connection.recv(100).decode()
    os.seteuid(0)
os.close(theirs)
found["pipe closed"] = os.read(ours, 100).decode()
command = [str(preload.STAND_IN), "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
for name, number in (("killed", signal.SIGKILL), ("terminated", signal.SIGTERM)):
    stand_in = subprocess.Popen(
        [*command, "--multiprocessing-fork"], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
    )
    pid = int(stand_in.stdout.readline())
    stand_in.send_signal(number)
    found[name] = [stand_in.wait(PATIENCE_S), stand_in.stdout.read(), comes_true(lambda: not is_alive(pid))]
PARENT = f"""
import subprocess, sys, time
stand_in = subprocess.Popen({[*command, "--multiprocessing-fork"]!r}, stdout=subprocess.PIPE, text=True)
print(stand_in.stdout.readline(), flush=True)
time.sleep(600)
"""
parent = subprocess.Popen(
    [sys.executable, "-c", PARENT], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
)
pid = int(parent.stdout.readline())
parent.kill()
parent.wait(PATIENCE_S)
found["orphan ends"] = comes_true(lambda: not is_alive(pid))

(fork_server,) = psutil.Process().children()
fork_server.suspend()  # as long as it imports it answers nobody
EARLY = PARENT.replace("stand_in.stdout.readline()", "stand_in.pid").replace("print(os.getpid(), flush=True); ", "")
parent = subprocess.Popen(
    [sys.executable, "-c", EARLY], env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
)
stand_in = psutil.Process(int(parent.stdout.readline()))
found["it asks"] = comes_true(lambda: asks(stand_in.pid))
parent.kill()
parent.wait(PATIENCE_S)
fork_server.resume()
found["early orphan ends"] = comes_true(lambda: not is_alive(stand_in.pid))
if not found["early orphan ends"]:
    stand_in.kill()
print(json.dumps(found))
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a driver which lets its server start processes in many ways."""
    script = tmp_path_factory.mktemp("driver") / "driver.py"
    script.write_text(DRIVER)
    repository = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{repository}/tests/helpers"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_fork_runs_what_python_would(found: dict[str, Any]) -> None:
    assert found["who"] == [0, "False / -c --multiprocessing-fork", ""]
    assert found["exit"] == [5, "", ""]
    assert found["raise"][0] == 1 and found["raise"][2].endswith("KeyError: 'here'")
    assert found["signal"] == [-9, "", ""]


def test_it_has_the_descriptors_of_its_stand_in_and_nobody_else_keeps_them(found: dict[str, Any]) -> None:
    assert found["output"] == [0, "out", "err"]
    assert found["input"] == [0, "cba", ""]
    assert found["through"] == "through"
    assert found["pipe closed"] == ""  # end of file: neither the server nor a fork holds the other end


def test_signals_reach_it_and_it_dies_with_its_stand_in(found: dict[str, Any]) -> None:
    assert found["killed"] == [-9, "", True]
    assert found["terminated"] == [-15, "", True]
    assert found["orphan ends"], "nor does it outlive the process that started it"
    assert found["it asks"] and found["early orphan ends"], "which may have ended before the server served it"


@pytest.mark.parametrize(
    ("case", "reason"),
    [("other job", "it is of another job or node"), ("no socket", "refused")],
)
def test_what_cannot_be_served_is_a_plain_python_and_says_so(found: dict[str, Any], case: str, reason: str) -> None:
    code, output, message = found[case]
    assert (code, output) == (0, "plain")
    assert "not forked from the preloaded process" in message and reason in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_nobody_elses_process_is_served(found: dict[str, Any]) -> None:
    assert found["other user"] == "it is another user's"


def test_what_is_no_worker_is_a_plain_python() -> None:
    environment = {**os.environ, "VERL_FORK_INTERPRETER": sys.executable, SOCKET_VARIABLE: "nobody"}
    command = [STAND_IN, "-c", "import sys; print(sys.executable, sys.argv)", "x"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"{sys.executable} ['-c', 'x']"
