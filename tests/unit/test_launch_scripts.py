"""The launch files of Slurm and SkyPilot as shell programs: who waits for whom, and what their ends say.

Neither scheduler is there: `ray`, `srun`, `scontrol` and `python` are small programs that write down what is asked.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
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
        begun.append(
            subprocess.Popen(
                ["bash", "script", "experiment=apps_dapo"],
                cwd=tmp_path,
                env={**os.environ, **job, **variables, "PATH": path},
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return begun[-1]

    yield launch
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(path: Path, *, there: bool = True) -> None:
    end = time.monotonic() + 60
    while path.exists() != there:
        assert time.monotonic() < end, path
        time.sleep(0.02)


def requeued(folder: Path) -> int:
    return (folder / "asked").read_text().count("scontrol requeue 12")


def test_slurm_ends_as_the_run_does(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    assert launch(SLURM).wait(60) == 7
    asked = (tmp_path / "asked").read_text()
    assert "prometheus.file=/tmp/ray-12/" in asked and "experiment=apps_dapo" in asked and requeued(tmp_path) == 0


@pytest.mark.parametrize("status", ["0", "1"])
def test_slurm_requeues_at_the_time_limits_signal(launch: Launch, tmp_path: Path, status: str) -> None:
    assert "#SBATCH --signal=B:USR1@" in SLURM and "#SBATCH --requeue\n" in SLURM
    job = launch(SLURM, REQUEUE=status)
    until(tmp_path / "main")
    time.sleep(0.2)  # until it waits
    job.send_signal(signal.SIGUSR1)
    with pytest.raises(subprocess.TimeoutExpired):  # what ends the run is Slurm, or its own end
        job.wait(0.5)
    (tmp_path / "go").touch()
    assert job.wait(60) == 7 and requeued(tmp_path) == 1


def test_a_job_of_slurm_that_is_cancelled_stays_so(launch: Launch, tmp_path: Path) -> None:
    job = launch(SLURM)
    until(tmp_path / "main")
    job.terminate()
    assert job.wait(60) == -signal.SIGTERM and requeued(tmp_path) == 0


def node(rank: int) -> dict[str, str]:
    ips = "10.0.0.1\n10.0.0.2"
    sizes = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    return {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": ips, **sizes}


def test_the_head_of_skypilot_ends_its_cluster_and_says_how_the_run_ended(launch: Launch, tmp_path: Path) -> None:
    job = launch(SKY + FLUSH, **node(0))
    until(tmp_path / "main")
    assert (tmp_path / "up").exists()
    (tmp_path / "go").touch()
    assert job.wait(60) == 7 and (tmp_path / "flushed").exists() and not (tmp_path / "up").exists()
    assert "trainer.nnodes=2 trainer.n_gpus_per_node=8" in (tmp_path / "asked").read_text()


def test_a_worker_of_skypilot_ends_when_the_cluster_has(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "up").touch()
    job = launch(SKY + FLUSH, **node(1))
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(0.5)
    asked = (tmp_path / "asked").read_text()
    assert "ray start --address 10.0.0.1:6379" in asked and "--block" not in asked and "python" not in asked
    (tmp_path / "up").unlink()
    assert job.wait(60) == 0 and (tmp_path / "flushed").exists()
