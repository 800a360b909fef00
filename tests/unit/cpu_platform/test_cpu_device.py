"""The platform's answers to the questions that verl asks of an accelerator."""

import ast
from pathlib import Path

import psutil
import torch
import verl
from verl.plugin.platform import get_platform
from verl.utils import device as verl_device

from recipe.cpu_platform import ENVIRONMENT, device
from recipe.cpu_platform.platform import PlatformCPU


def test_verl_uses_the_platform() -> None:
    assert ENVIRONMENT["VERL_ENGINE_DEVICE"] == "cuda"
    assert isinstance(get_platform(), PlatformCPU)
    assert verl_device.get_device_name() == "cpu"
    assert verl_device.get_torch_device() is device
    assert verl_device.get_resource_name() == "GPU"
    assert not verl_device.is_support_ipc()


def test_memory_figures_are_those_of_the_process_and_the_machine() -> None:
    used = device.memory_allocated()
    assert 0.5 * psutil.Process().memory_info().rss < used <= device.max_memory_allocated() * 1.01
    ballast = torch.ones(128 << 20)  # 512 MiB, touched; the kernel may take other pages away meanwhile
    assert device.memory_allocated() > used + (100 << 20)
    del ballast
    available, total = device.mem_get_info()
    assert 0 < available < total == psutil.virtual_memory().total


def test_every_device_call_of_verls_trainer_path_has_an_answer() -> None:
    # Attributes of get_torch_device() anywhere in verl, less those of NCCL, NPU and memory-snapshot code.
    names = set()
    for file in Path(verl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            is_call = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)
            if is_call and getattr(node.value.func, "id", None) == "get_torch_device":
                names.add(node.attr)
    assert {"empty_cache", "get_rng_state", "mem_get_info", "synchronize"} <= names
    assert {name for name in names if not hasattr(device, name)} <= {"Event"}
