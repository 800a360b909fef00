"""examples/cluster/ray_job.sh on a cluster that is up: submitted, stopped behind a checkpoint, submitted again."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from recipe.online_refiner.run_dir import read_rows

SCRIPT = Path(__file__).parents[3] / "examples" / "cluster" / "ray_job.sh"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
NUM_STEPS = 3


@pytest.mark.e2e
@pytest.mark.slow
def test_a_job_that_is_stopped_goes_on_when_it_is_submitted_again(
    start_marked: Callable, letters_job: list[str], own_ray: dict[str, str], tmp_path: Path
) -> None:
    """It trains on one node, and a dedicated refiner lives on the other; Prometheus is told of the servers of both."""
    probe, file, run_dir = Path(__file__).with_name("two_nodes.py"), tmp_path / "address", tmp_path / "run"
    cluster = start_marked([str(probe), "serve", str(file)], environment={**own_ray, "PATH": PATH}, cwd=tmp_path)
    cluster.wait_until(file.exists, 120)
    address, targets = file.read_text(), tmp_path / "prometheus" / "prometheus.yml"
    job = [
        *("platform=cpu", f"run_dir={run_dir}", *letters_job, "refiner.template=dialogue", "refiner.draft=ngram"),
        *("trainer.n_gpus_per_node=1", "refiner.placement=dedicated", "refiner.n_gpus_per_node=1"),
        *("ray_kwargs.ray_init.num_gpus=null", "ray_kwargs.ray_init.num_cpus=null"),
        *(f"trainer.total_training_steps={NUM_STEPS}", "trainer.save_freq=1", "trainer.total_epochs=9"),
        "actor_rollout_ref.rollout.disable_log_stats=false",
        *("actor_rollout_ref.rollout.prometheus.enable=true", f"actor_rollout_ref.rollout.prometheus.file={targets}"),
    ]

    submitted = submit(address, job, NO_WAIT="1")
    assert submitted.returncode == 0, submitted.stderr[-3000:]
    (name,) = set(re.findall(r"raysubmit_\w+", submitted.stdout))
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    log = lambda: ray_job("logs", name, address).stdout  # noqa: E731
    cluster.wait_until(lambda: tracker.exists() or "FAILED" in ray_job("status", name, address).stdout, 900)
    assert tracker.exists(), log()[-6000:]
    assert names_of_models(targets) == {"tiny_llama0": 1, "refiner": 1}
    stopped = ray_job("stop", name, address)
    assert "was stopped" in stopped.stderr + stopped.stdout, stopped
    stopped_at = int(tracker.read_text())
    assert stopped_at < NUM_STEPS, "the run ended before it was stopped"

    again = submit(address, job)
    assert again.returncode == 0, again.stdout[-6000:] + again.stderr[-2000:]
    assert f"setting global step to {stopped_at}" in again.stdout, "the script shows the job's log"
    assert [step["step"] for step in read_rows(run_dir / "metrics.jsonl")] == list(range(1, NUM_STEPS + 1))

    failed = submit(address, [*job, "refiner.n_gpus_per_node=0"])
    assert failed.returncode != 0 and "error: refiner.placement=dedicated" in failed.stdout
    cluster.process.terminate()
    assert cluster.wait(60) == 0, cluster.output()[-3000:]
    assert cluster.survivors() == []


def submit(address: str, overrides: list[str], **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(SCRIPT), *overrides]
    settings = {**os.environ, "PATH": PATH, "ADDRESS": address, **environment}
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=900)


def ray_job(what: str, name: str, address: str) -> subprocess.CompletedProcess:
    """Ask the cluster about a job, or stop it, as a user does."""
    command = ["ray", "job", what, "--address", address, name]
    return subprocess.run(command, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, timeout=120)


def names_of_models(file: Path) -> dict[str, int]:
    """Return what the servers that Prometheus is told of call their models, and how many requests they have done."""
    (job,) = (one for one in yaml.safe_load(file.read_text())["scrape_configs"] if one["job_name"] == "rollout")
    found: dict[str, int] = {}
    for target in job["static_configs"][0]["targets"]:
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=30) as answer:
            counts = re.findall(
                r'^vllm:generation_tokens_total\{.*model_name="(.*?)".*\} ([\d.e+]+)$', answer.read().decode(), re.M
            )
        for name, count in counts:
            found[name] = found.get(name, 0) + (float(count) > 0)
    return found
