"""The launch files say what this package and their schedulers know."""

import subprocess
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
TEXTS = {path.name: path.read_text() for path in CLUSTER.iterdir()}


@pytest.mark.parametrize("name", ["ray_job.sh", "slurm.sbatch"])
def test_shell(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(CLUSTER / name)]).returncode == 0
    assert "set -euo pipefail" in TEXTS[name]


def test_the_script_of_skypilot_is_shell() -> None:
    run = yaml.safe_load(TEXTS["sky.yaml"])["run"]
    assert subprocess.run(["bash", "-n"], input=run, text=True).returncode == 0


def test_kuberays_groups_have_what_the_entrypoint_asks_for() -> None:
    job = yaml.safe_load(TEXTS["rayjob.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = dict(word.split("=", 1) for word in job["spec"]["entrypoint"].split() if "=" in word)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert int(words["trainer.nnodes"]) == group["replicas"] == group["maxReplicas"]
    container = group["template"]["spec"]["containers"][0]
    assert words["trainer.n_gpus_per_node"] == container["resources"]["limits"]["nvidia.com/gpu"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "/" + words["run_dir"].split("/")[1] in mounts, "all nodes write run_dir"


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"Dockerfile"}))
def test_each_starts_the_main_job(name: str) -> None:
    assert "python -m recipe.online_refiner.main" in TEXTS[name]
