"""The launch files say what this package and their schedulers know."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from ray.util.state.common import NodeState
from ray.util.state.state_cli import AvailableFormat, output_with_format

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"
TEXTS = {path.name: path.read_text() for path in CLUSTER.iterdir() if path.is_file()}


RESOURCES = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("limits", "requests")
    },
}
CONTAINER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "image"],
    "properties": {
        "name": {"type": "string"},
        "image": {"type": "string"},
        "resources": RESOURCES,
        "volumeMounts": {"type": "array", "items": {"required": ["name", "mountPath"]}},
    },
}
TEMPLATE = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "additionalProperties": False,
            "properties": {
                "containers": {"type": "array", "items": CONTAINER},
                "volumes": {"type": "array", "items": {"required": ["name"]}},
            },
        }
    },
}
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
HEAD = {
    "type": "object",
    "required": ["template"],
    "additionalProperties": False,
    "properties": {"rayStartParams": PARAMETERS, "template": TEMPLATE},
}
WORKERS = {
    "type": "object",
    "required": ["groupName", "maxReplicas", "minReplicas", "template"],
    "additionalProperties": False,
    "properties": {
        "groupName": {"type": "string"},
        **dict.fromkeys(["replicas", "minReplicas", "maxReplicas"], {"type": "integer", "minimum": 0}),
        "rayStartParams": PARAMETERS,
        "template": TEMPLATE,
    },
}
RAY_JOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": {"required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "entrypoint": {"type": "string"},
                "backoffLimit": {"type": "integer"},
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "ttlSecondsAfterFinished": {"type": "integer"},
                "rayClusterSpec": {
                    "type": "object",
                    "required": ["headGroupSpec"],
                    "additionalProperties": False,
                    "properties": {"headGroupSpec": HEAD, "workerGroupSpecs": {"type": "array", "items": WORKERS}},
                },
            },
        },
    },
}
"""Of KubeRay's schema (ray.io/v1, KubeRay 1.7) the keys that the file has; the file was checked against all of it."""
SKY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "num_nodes": {"type": "integer", "minimum": 1},
        "secrets": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "accelerators": {"type": ["string", "object"]},
                "image_id": {"type": "string"},
                "disk_size": {"type": ["string", "integer"]},
            },
        },
        "file_mounts": {
            "type": "object",
            "additionalProperties": {
                "type": ["string", "object"],
                "additionalProperties": False,
                "properties": {"name": {"type": "string"}, "mode": {"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]}},
            },
        },
        "run": {"type": "string"},
    },
}
"""Of SkyPilot's schema of a task (``sky/utils/schemas.py``) the same."""
SCHEMAS = {"rayjob.yaml": RAY_JOB, "sky.yaml": SKY}


@pytest.mark.parametrize("name", SCHEMAS)
def test_yaml_is_of_its_schema(name: str) -> None:
    jsonschema.Draft202012Validator(SCHEMAS[name]).validate(yaml.safe_load(TEXTS[name]))


@pytest.mark.parametrize("broken", ["entryPoint", "backOffLimit"])
def test_a_misspelled_key_is_seen(broken: str) -> None:
    job = yaml.safe_load(TEXTS["rayjob.yaml"])
    job["spec"][broken] = 1
    with pytest.raises(jsonschema.ValidationError, match=broken):
        jsonschema.Draft202012Validator(RAY_JOB).validate(job)


def shellcheck(text: str) -> str:
    """Return what shellcheck has against a script in bash; its package is one of the extra `dev`."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("shellcheck", path=path)
    assert found, "run scripts/setup.sh"
    command = [found, "--shell=bash", "--severity=info", "--exclude=SC1091", "-"]  # SC1091: a file that is not there
    return subprocess.run(command, input=text, text=True, capture_output=True).stdout


SCRIPTS = sorted([*CLUSTER.glob("*.sh"), *CLUSTER.glob("*.sbatch"), *(CLUSTER.parents[1] / "scripts").glob("*.sh")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_shell(script: Path) -> None:
    assert shellcheck(script.read_text()) == ""
    assert "set -euo pipefail" in script.read_text()


def test_the_script_of_skypilot_is_shell() -> None:
    run = yaml.safe_load(TEXTS["sky.yaml"])["run"]
    assert shellcheck(run) == ""
    assert "SC2086" in shellcheck("ls $HOME/$name"), "it would tell"


@pytest.mark.parametrize("name", ["slurm.sbatch", "sky.yaml"])
def test_nodes_of_one_cluster_have_one_token(name: str) -> None:
    text = TEXTS[name]
    assert "RAY_AUTH_MODE=token" in text.partition("ray start")[0] and "RAY_AUTH_TOKEN" in text


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


@pytest.mark.parametrize("name", sorted(set(TEXTS) - {"Dockerfile", "upload.py"}))
def test_each_starts_the_main_job(name: str) -> None:
    assert "python -m recipe.online_refiner.main" in TEXTS[name]


@pytest.mark.parametrize("name", ["slurm.sbatch", "sky.yaml"])
@pytest.mark.parametrize("num_nodes", [0, 1, 2, 300])
def test_nodes_are_counted_in_what_ray_prints(name: str, num_nodes: int) -> None:
    (command, pipe) = re.findall(r"(ray list nodes [^|]*) \| (.*?)\)\"", TEXTS[name])[0]
    assert "--address" in command and "--filter state=ALIVE" in command and "--limit 10000" in command
    nodes = [
        {
            "node_id": f"{index:056x}",
            "node_ip": "10.0.0.1",
            "state": "ALIVE",
            "labels": {"ray.io/node-id": f"{index:x}"},
        }
        for index in range(num_nodes)
    ]
    printed = output_with_format(nodes, schema=NodeState, format=AvailableFormat.JSON)
    assert "\n" not in printed.strip()
    counted = subprocess.run(["bash", "-c", pipe], input=printed, text=True, capture_output=True).stdout
    assert int(counted) == num_nodes


@pytest.mark.parametrize("name", ["rayjob.yaml", "sky.yaml"])
def test_data_are_on_the_file_system_of_all_nodes(name: str) -> None:
    words = dict(re.findall(r"((?:data\.\w+_files|run_dir))=(\S+)", TEXTS[name]))
    assert set(words) == {"data.train_files", "data.val_files", "run_dir"}
    assert all(path.startswith("/shared/") for path in words.values())


def test_the_image_has_a_tensordict_that_verl_takes() -> None:
    (asked,) = (one for one in map(Requirement, requires("verl") or []) if one.name == "tensordict" and not one.marker)
    (given,) = (Requirement(one) for one in re.findall(r'"(tensordict[^"]*)"', TEXTS["Dockerfile"]))
    assert given.specifier == asked.specifier


def test_the_image_has_nothing_that_git_leaves_out() -> None:
    left_out = {line.removeprefix("**/") for line in (CLUSTER.parents[1] / ".dockerignore").read_text().splitlines()}
    for line in (CLUSTER.parents[1] / ".gitignore").read_text().splitlines():
        assert line.rstrip("/") in left_out, line
    assert ".git" in left_out
