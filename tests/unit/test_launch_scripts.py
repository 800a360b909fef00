"""Scripts and the launch files of Slurm and SkyPilot as programs: who waits for whom, and what their ends say.

Neither scheduler is there: `ray`, `srun`, `scontrol` and `python` are small programs that write down what is asked.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from waiting import PATIENCE_S, comes_true

REPOSITORY = Path(__file__).parents[2]
CLUSTER = REPOSITORY / "examples" / "cluster"
SLURM = (CLUSTER / "slurm.sbatch").read_text()
SKY = yaml.safe_load((CLUSTER / "sky.yaml").read_text())["run"]
FLUSH = "\ncode=$?\ntouch flushed\nexit $code\n"
"""What SkyPilot appends to a script, in words: uploads end before its exit status counts."""
PROGRAMS = {
    "ray": """
        echo "ray $*" >>asked
        case "$*" in
            status*) test -f up ;;
            list*) echo '[{"node_id": "a", "state": "ALIVE"}, {"node_id": "b", "state": "ALIVE"}]' ;;
            "start --head"*) trap 'rm -f up; exit' TERM; touch up; while :; do /bin/sleep 0.02; done ;;
        esac""",
    "python": 'echo "python $*" >>asked; touch main; until [ -f go ]; do /bin/sleep 0.02; done; exit 7',
    "srun": """
        while [[ $1 = -* ]]; do if [ "$1" = -w ]; then shift; fi; shift; done
        exec "$@" """,
    "scontrol": """
        if [ "$1" = show ]; then printf 'one\\ntwo\\n'; exit; fi
        echo "scontrol $*" >>asked; exit "${REQUEUE:-0}" """,
    "hostname": "echo 10.0.0.1",
    "sleep": "exec /bin/sleep 0.02",
    "activate": "",
}
Launch = Callable[..., subprocess.Popen]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Return what starts a script among these programs; nothing is left of it."""
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    begun: list[subprocess.Popen] = []

    def launch(text: str, **variables: str) -> subprocess.Popen:
        (tmp_path / "script").write_text(text)
        path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
        job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]", "VENV": str(tmp_path), "RAY_AUTH_TOKEN": "t"}
        options = {"cwd": tmp_path, "env": {**os.environ, **job, **variables, "PATH": path}, "start_new_session": True}
        command = ["bash", "script", "experiment=apps_dapo"]
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, **options))
        return begun[-1]

    yield launch
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def requeued(folder: Path) -> int:
    return (folder / "asked").read_text().count("scontrol requeue 12")


def waits(job: subprocess.Popen) -> bool:
    """Return whether a script sleeps, as it does until its run ends."""
    return psutil.Process(job.pid).status() == psutil.STATUS_SLEEPING


@pytest.mark.parametrize("status", ["0", "1"])
def test_slurm_requeues_at_the_time_limits_signal(launch: Launch, tmp_path: Path, status: str) -> None:
    job = launch(SLURM, REQUEUE=status)
    assert comes_true((tmp_path / "main").exists) and comes_true(lambda: waits(job))
    job.send_signal(signal.SIGUSR1)
    # What ends the run is Slurm, or its own end.
    assert comes_true(lambda: requeued(tmp_path)) and comes_true(lambda: waits(job))
    (tmp_path / "go").touch()
    assert job.wait(PATIENCE_S) == 7 and requeued(tmp_path) == 1


def test_a_job_of_slurm_that_is_cancelled_stays_so(launch: Launch, tmp_path: Path) -> None:
    job = launch(SLURM)
    assert comes_true((tmp_path / "main").exists)
    job.terminate()
    assert job.wait(PATIENCE_S) == -signal.SIGTERM and requeued(tmp_path) == 0


def node(rank: int) -> dict[str, str]:
    ips = "10.0.0.1\n10.0.0.2"
    sizes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    return {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": ips, **sizes}


def test_the_head_of_skypilot_ends_its_cluster_and_says_how_the_run_ended(launch: Launch, tmp_path: Path) -> None:
    job = launch(SKY + FLUSH, **node(0))
    assert comes_true((tmp_path / "main").exists)
    assert comes_true((tmp_path / "up").exists)  # the cluster starts in the background
    (tmp_path / "go").touch()
    assert job.wait(PATIENCE_S) == 7 and (tmp_path / "flushed").exists() and not (tmp_path / "up").exists()
    assert "trainer.nnodes=2 trainer.n_gpus_per_node=8" in (tmp_path / "asked").read_text()


def test_a_worker_of_skypilot_ends_when_the_cluster_has(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "up").touch()
    job = launch(SKY + FLUSH, **node(1))
    file = tmp_path / "asked"
    assert comes_true(lambda: file.exists() and file.read_text().count("ray status") > 3) and job.poll() is None
    asked = file.read_text()
    assert "ray start --address 10.0.0.1:6379" in asked and "--block" not in asked and "python" not in asked
    (tmp_path / "up").unlink()
    assert job.wait(PATIENCE_S) == 0 and (tmp_path / "flushed").exists()


FOLDERS = [CLUSTER, REPOSITORY / "scripts", REPOSITORY / "findings"]
SCRIPTS = sorted([*CLUSTER.glob("*.sbatch"), *(script for folder in FOLDERS for script in folder.glob("*.sh"))])


@pytest.mark.parametrize(
    "text", [*(path.read_text() for path in SCRIPTS), SKY], ids=[*(p.name for p in SCRIPTS), "sky"]
)
def test_shell(text: str) -> None:
    found = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert found, "run scripts/setup.sh"
    command = [found, "--shell=bash", "--severity=info", "--exclude=SC1091", "-"]  # SC1091: a file that is not there
    assert subprocess.run(command, input=text, text=True, capture_output=True).stdout == ""


def write_program(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def setup_folder(folder: Path, lock: str) -> None:
    for name in (f"requirements/{lock}.txt", "requirements/after-torch.txt", "pyproject.toml", "scripts/setup.sh"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text((REPOSITORY / name).read_text())


def test_setup_waits_for_whoever_installs(tmp_path: Path) -> None:
    """Two at a time, the first of which holds the lock: the second says so, and finds all done."""
    setup_folder(tmp_path, "cpu")
    (tmp_path / ".venv").mkdir()
    finish = (
        "exec 9>.setup.lock; flock 9; echo held; read -r _; "
        "hash=$(cat requirements/cpu.txt requirements/after-torch.txt pyproject.toml | sha256sum | cut -c1-16); "
        'echo "cpu $hash $PWD" > .venv/.installed'
    )
    pipes = {"cwd": tmp_path, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen(["bash", "-c", finish], **pipes)
    assert first.stdout and first.stdout.readline() == "held\n"
    second = subprocess.Popen(["bash", "scripts/setup.sh"], env={"PATH": "/usr/bin:/bin", "PLATFORM": "cpu"}, **pipes)
    assert second.stdout and second.stdout.readline() and second.poll() is None  # it says that it waits
    first.communicate("\n")
    assert second.communicate()[0] == "" and second.returncode == 0
    command = ["bash", "scripts/setup.sh"]
    third = subprocess.run(command, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert (third.returncode, third.stdout) == (0, b""), "without PLATFORM it is what .venv has"


def test_setup_refuses_another_python(tmp_path: Path) -> None:
    setup_folder(tmp_path, "gpu")
    write_program(tmp_path / ".venv" / "bin" / "python", "exit 1")
    write_program(tmp_path / "bin" / "uv", "exit 0")
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PLATFORM": "gpu"}
    done = subprocess.run(["bash", "scripts/setup.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "3.12" in done.stderr


def test_flash_attention_is_installed_where_it_is_asked_for(tmp_path: Path) -> None:
    setup_folder(tmp_path, "gpu")
    write_program(tmp_path / ".venv" / "bin" / "python", "")
    write_program(tmp_path / "bin" / "uv", 'for last; do :; done; if [ "$last" = - ]; then cat >>pins.log; fi')

    def pins(**environment: str) -> set[str]:
        environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "PLATFORM": "gpu", **environment}
        subprocess.run(["bash", "scripts/setup.sh"], cwd=tmp_path, env=environment, check=True, capture_output=True)
        log = tmp_path / "pins.log"
        found = {line.partition("==")[0] for line in log.read_text().split()} if log.exists() else set()
        log.unlink(missing_ok=True)
        return found

    plain = pins()
    assert "torch" in plain and "flash-attn" not in plain
    assert pins() == set(), "nothing is to do"
    assert pins(WITH_FLASH_ATTN="1") == plain | {"flash-attn"}
    assert pins() == set(), "it stays"
    assert pins(WITH_FLASH_ATTN="0") == plain


def quickstart(folder: Path, *arguments: str, installed: str = "cpu") -> list[str]:
    """Run it with a trainer that says only how it was called, and return that."""
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    (scripts / "quickstart.sh").write_text((REPOSITORY / "scripts" / "quickstart.sh").read_text())
    (scripts / "setup.sh").write_text("")
    write_program(folder / ".venv" / "bin" / "python", "")
    write_program(folder / ".venv" / "bin" / "online-refiner", 'echo "$@"')
    (folder / ".venv" / ".installed").write_text(f"{installed} 0123 {folder}\n")
    command = ["bash", "scripts/quickstart.sh", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()


def run_dirs(said: list[str]) -> list[Path]:
    return [Path(word.removeprefix("run_dir=")) for word in said if word.startswith("run_dir=")]


def save_step(run_dir: Path, step: int, total: int) -> None:
    """Leave what a run leaves that was stopped after a checkpoint."""
    (run_dir / "checkpoints").mkdir(exist_ok=True)
    (run_dir / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    optimizer = "actor_rollout_ref:\n  actor:\n    optim:\n      total_training_steps: -1\n"
    (run_dir / "config.yaml").write_text(f"{optimizer}trainer:\n  total_training_steps: {total}\n")


@pytest.mark.parametrize(("installed", "platform"), [("cpu", "cpu"), ("gpu", "gpu"), ("megatron", "gpu")])
def test_the_quickstart_trains_on_what_is_installed(tmp_path: Path, installed: str, platform: str) -> None:
    said = quickstart(tmp_path, "trainer.total_training_steps=20", installed=installed)
    assert f"platform={platform}" in said and "experiment=quickstart" in said
    assert said[-1] == "trainer.total_training_steps=20", "what is asked for wins"


def test_the_quickstart_goes_on_with_the_run_that_the_same_command_left(tmp_path: Path) -> None:
    (first,) = run_dirs(quickstart(tmp_path, "a=1"))
    assert run_dirs(quickstart(tmp_path, "a=1")) == [first], "it was stopped before it saved anything"
    save_step(tmp_path / first, 6, total=8)
    assert run_dirs(quickstart(tmp_path, "a=1")) == [first]
    moved = first.with_name("quickstart-20200101-000000")  # two runs that begin within a second have one name
    (tmp_path / first).rename(tmp_path / moved)
    (other,) = run_dirs(quickstart(tmp_path, "a=2"))
    assert other != moved, "another command"
    assert run_dirs(quickstart(tmp_path, "a=1")) == [moved]
    save_step(tmp_path / moved, 8, total=8)
    (tmp_path / other).rename(tmp_path / "runs" / "another")
    (new,) = run_dirs(quickstart(tmp_path, "a=1"))
    assert new != moved and (tmp_path / new).is_dir(), "it is finished"


def test_the_quickstart_leaves_a_run_alone_that_goes_on(tmp_path: Path) -> None:
    (first,) = run_dirs(quickstart(tmp_path))
    moved = first.with_name("quickstart-20200101-000000")
    (tmp_path / first).rename(tmp_path / moved)
    with (tmp_path / moved / "arguments").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run_dirs(quickstart(tmp_path)) != [moved]


def test_the_quickstart_takes_a_folder_of_the_users_own(tmp_path: Path) -> None:
    assert run_dirs(quickstart(tmp_path, "run_dir=mine")) == [Path("mine")]
    assert not list((tmp_path / "runs").glob("quickstart-*"))
