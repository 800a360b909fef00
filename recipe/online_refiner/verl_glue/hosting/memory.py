"""Memory in use on the devices of rollout servers. A few of them are asked: the others are like them."""

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any

import psutil
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError

MAX_ASKED = 8
TIMEOUT_S = 30.0


def most_used_gb(servers: Iterable[ActorHandle]) -> float:
    """Return the memory in use, in GiB, on the fullest device of some of verl's servers; 0 where nobody answers."""
    calls = [server.__ray_call__.remote(_used_gb) for server in islice(servers, MAX_ASKED)]
    return max(map(_answer, calls), default=0.0)


def _answer(call: Any) -> float:
    try:
        return float(ray.get(call, timeout=TIMEOUT_S))
    except (RayError, TimeoutError):  # a dead one is found out, and started again, where it is woken
        return 0.0


def _used_gb(_server: Any) -> float:
    """Return the memory in use on a server's device, by NVML: torch would take memory for a context of its own.

    On the CPU platform it is the machine's, and 0 on accelerators of other vendors.
    """
    from verl.utils.device import get_device_name, get_vendor

    if get_device_name() == "cpu":
        return psutil.virtual_memory().used / 2**30
    if get_vendor() != "nvidia":
        return 0.0
    import pynvml  # of the package nvidia-ml-py, which vLLM asks for on such machines

    pynvml.nvmlInit()
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",") if name]
    by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
    handles = [by_index(int(name)) if name.isdigit() else by_uuid(name) for name in visible]
    return max((pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30 for handle in handles), default=0.0)
