"""What the lock files for GPUs must hold; ``scripts/lock.sh --check`` asks the package index for the rest."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
REQUIREMENTS = REPOSITORY / "requirements"
PIN = re.compile(r"([a-z0-9][a-z0-9._-]*)==([^ ]+)(?: ; (.*))?")


def names(file: str) -> list[str]:
    return [line for line in (REQUIREMENTS / file).read_text().splitlines() if not line.startswith("#")]


def pins(lock: str) -> dict[str, str]:
    """Return the versions by name; where markers tell several apart, the last one's, which is the newer Python's."""
    found = [PIN.fullmatch(line) for line in (REQUIREMENTS / f"{lock}.txt").read_text().splitlines()]
    assert all(found), "each line is a pin"
    return {pin[1]: pin[2] for pin in found if pin}


@pytest.mark.parametrize("lock", ["gpu", "megatron"])
def test_a_gpu_machine_gets_verls_own_packages(lock: str) -> None:
    there = pins(lock)
    assert "apex" not in there, "PyPI's is another package"
    assert there["torchcodec"] == "0.11.1" and there["torch"] == "2.11.0", "of verl's lock"
    assert (there["verl"], there["vllm"]) == ("0.9.1", "0.24.0")
    assert set(names("after-torch.txt")) <= set(names("sdists.txt")), "a wheel needs no torch"
    assert "flash-attn" in there


def test_both_are_alike() -> None:
    gpu, megatron = pins("gpu"), pins("megatron")
    alike = ("torch", "vllm", "verl", "transformers", "ray", "flash-attn", "transferqueue", "tensordict", "numpy")
    assert {name: gpu[name] for name in alike} == {name: megatron[name] for name in alike}
    assert {"megatron-core", "megatron-bridge", "transformer-engine"} <= megatron.keys() - gpu.keys()
    assert megatron["megatron-core"] == "0.18.0", "an older one resolves as well, and is not megatron-bridge's"


def test_each_package_without_a_wheel_is_explained() -> None:
    page = (REPOSITORY / "docs" / "cluster.md").read_text()
    explained = re.findall(r"^\| `([a-z0-9-]+)` \|", page.partition("without a wheel")[2].partition("\n## ")[0], re.M)
    assert sorted(explained) == sorted(names("sdists.txt"))
    pinned = pins("gpu") | pins("megatron")
    assert all(name in pinned for name in explained)


def test_setup_waits_for_whoever_installs(tmp_path: Path) -> None:
    """Two at a time, the first of which holds the lock: the second says so, and finds all done."""
    for name in ("requirements/cpu.txt", "requirements/after-torch.txt", "pyproject.toml", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
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
    assert (
        second.stdout
        and second.stdout.readline() == "setup: another process installs into this folder: waiting for it\n"
    )
    assert second.poll() is None
    first.communicate("\n")
    assert second.communicate()[0] == "" and second.returncode == 0
    third = subprocess.run(
        ["bash", "scripts/setup.sh"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True
    )
    assert (third.returncode, third.stdout) == (0, b""), "without PLATFORM it is what .venv has"


def test_setup_refuses_another_python(tmp_path: Path) -> None:
    for name in ("requirements/gpu.txt", "requirements/after-torch.txt", "pyproject.toml", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    python, uv = tmp_path / ".venv" / "bin" / "python", tmp_path / "bin" / "uv"
    for file, script in ((python, "exit 1"), (uv, "exit 0")):
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    environment = {"PATH": f"{uv.parent}:/usr/bin:/bin", "PLATFORM": "gpu"}
    done = subprocess.run(["bash", "scripts/setup.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "PLATFORM=gpu needs Python 3.12" in done.stderr
