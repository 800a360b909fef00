"""examples/cluster/ray_job.sh on a cluster that is up: submitted, stopped behind a checkpoint, submitted again."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import PATIENCE_S

from recipe.runs.files import read_rows

SCRIPT = Path(__file__).parents[3] / "examples" / "cluster" / "ray_job.sh"
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "1f" * 32,
}


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.alone  # two nodes share no preloaded process: 17 GB
def test_a_job_that_is_stopped_goes_on_when_it_is_submitted_again(
    start_marked: Callable, letters_job: list[str], own_ray: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> None:
    """It trains on both nodes, and each has a replica of the refiner; Prometheus is told of all servers.

    Checkpoints are uploaded by the example's callback, and the last one is fetched from the store at the end.
    """
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPT.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("CHECKPOINT_STORE", f"file://{tmp_path}/store")
    probe, file, run_dir = Path(__file__).with_name("two_nodes.py"), tmp_path / "address", tmp_path / "run"
    cluster = start_marked([str(probe), str(file)], environment={**own_ray, **ENVIRONMENT}, cwd=tmp_path)
    cluster.wait_until(file.exists)
    address, targets = file.read_text(), tmp_path / "prometheus" / "prometheus.yml"
    job = [
        "platform=cpu",
        f"run_dir={run_dir}",
        *letters_job,
        "refiner.template=dialogue",
        "trainer.nnodes=2",
        "trainer.n_gpus_per_node=1",
        "ray_kwargs.ray_init.num_gpus=null",
        "ray_kwargs.ray_init.num_cpus=null",
        "trainer.save_freq=1",
        "trainer.total_epochs=99",
        "actor_rollout_ref.rollout.disable_log_stats=false",
        "trainer.checkpoint_callback_class=upload.Upload",
        "actor_rollout_ref.rollout.prometheus.enable=true",
        f"actor_rollout_ref.rollout.prometheus.file={targets}",
    ]

    submitted = submit(address, [*job, "trainer.total_training_steps=99"], NO_WAIT="1")
    assert submitted.returncode == 0, submitted.stderr[-3000:]
    (name,) = set(re.findall(r"raysubmit_\w+", submitted.stdout))
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    cluster.wait_until(lambda: tracker.exists() or status(name, address) == "FAILED")
    assert tracker.exists(), ray_job("logs", name, address).stdout[-6000:]
    assert names_of_models(targets) == {"tiny_llama0": 2, "refiner": 2}
    stopped = ray_job("stop", name, address)
    assert "was stopped" in stopped.stderr + stopped.stdout, stopped
    stopped_at = int(tracker.read_text())

    last = stopped_at + 2
    again = submit(address, [*job, f"trainer.total_training_steps={last}"])
    assert again.returncode == 0, again.stdout[-6000:] + again.stderr[-2000:]
    assert f"setting global step to {stopped_at}" in again.stdout, "the script shows the job's log"
    steps = list(read_rows(run_dir / "metrics.jsonl"))
    assert [step["step"] for step in steps] == list(range(1, last + 1))
    assert all(step["refiner/num_accepted"] > 0 for step in steps)
    places = dict(re.findall(r"refiner replica (\d): server process \d+ on node (\w+)", again.stdout))
    assert places.keys() == {"0", "1"} and places["0"] != places["1"]

    fetch = f"import upload, pathlib; upload.download(pathlib.Path('{tmp_path}/fetched'))"
    subprocess.run([sys.executable, "-c", fetch], check=True)
    assert contents(tmp_path / "fetched", last) == contents(run_dir / "checkpoints", last)

    failed = submit(address, [*job, "refiner.n_gpus_per_node=1"])
    assert failed.returncode != 0 and "[key-is-read]" in failed.stdout
    cluster.process.terminate()
    assert cluster.wait() == 0, cluster.output()[-3000:]
    assert cluster.survivors() == []


def submit(address: str, overrides: list[str], **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(SCRIPT), *overrides]
    settings = {**os.environ, **ENVIRONMENT, "ADDRESS": address, **environment}
    for _ in range(30):  # a cluster that has just begun may lack the agent that starts jobs, as Ray says
        done = subprocess.run(command, env=settings, capture_output=True, text=True)
        if "No available agent to submit job, please try again" not in done.stderr:
            break
        time.sleep(2)
    return done


def ray_job(what: str, name: str, address: str) -> subprocess.CompletedProcess:
    """Ask the cluster about a job, or stop it, as a user does."""
    command = ["ray", "job", what, "--address", address, name]
    return subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True)


def contents(folder: Path, step: int) -> dict[str, int]:
    """Return the sizes of a checkpoint's files, by their paths; verl names it the latest."""
    assert (folder / "latest_checkpointed_iteration.txt").read_text() == str(step)
    root = folder / f"global_step_{step}"
    found = {str(file.relative_to(root)): file.stat().st_size for file in root.rglob("*") if file.is_file()}
    assert "data.pt" in found and len(found) > 5
    return found


def status(name: str, address: str) -> str:
    headers = {"Authorization": f"Bearer {ENVIRONMENT['RAY_AUTH_TOKEN']}"}
    asked = urllib.request.Request(f"{address}/api/jobs/{name}", headers=headers)
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        return json.load(answer)["status"]


def names_of_models(file: Path) -> dict[str, int]:
    """Return what the servers that Prometheus is told of call their models, and how many requests they have done."""
    (job,) = (one for one in yaml.safe_load(file.read_text())["scrape_configs"] if one["job_name"] == "rollout")
    found: dict[str, int] = {}
    for target in job["static_configs"][0]["targets"]:
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=PATIENCE_S) as answer:
            counts = re.findall(
                r'^vllm:generation_tokens_total\{.*model_name="(.*?)".*\} ([\d.e+]+)$', answer.read().decode(), re.M
            )
        for name, count in counts:
            found[name] = found.get(name, 0) + (float(count) > 0)
    return found
