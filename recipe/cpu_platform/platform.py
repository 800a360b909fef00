"""The CPU as a verl platform: the methods of ``verl/plugin/platform/platform_base.py:PlatformBase`` of verl 0.9.1."""

from contextlib import nullcontext
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase

from recipe.cpu_platform import device
from recipe.cpu_platform.device import always, nothing


class PlatformCPU(PlatformBase):
    """The host's processor. Several workers share it, each holding one logical Ray GPU."""

    device_name: Any = "cpu"
    vendor_name: Any = "generic"  # under which `recipe.cpu_platform.megatron.engine` stands in verl's engine registry
    device_module: Any = device  # stands in for `torch.cuda`
    is_available: Any = always(True)
    is_platform_available: Any = always(False)  # the CPU is a choice, never the result of verl's auto-detection
    device_count: Any = device.device_count
    current_device: Any = always("cpu")  # no index: in verl's `tensor.to(get_device_id())` a bare 0 is an accelerator
    manual_seed: Any = staticmethod(torch.manual_seed)
    manual_seed_all: Any = staticmethod(torch.manual_seed)
    synchronize: Any = nothing
    set_device = set_allocator_settings = empty_cache = synchronize
    profiler_start = profiler_stop = cudart = synchronize
    nvtx_range: Any = always(nullcontext())
    get_device_capability: Any = always((None, None))
    communication_backend_name: Any = always("gloo")
    visible_devices_envvar: Any = always("CUDA_VISIBLE_DEVICES")  # Ray sets it per worker, as for real GPUs
    ray_noset_envvars: Any = always([])  # Ray may set the logical device indices
    ray_resource_name: Any = always("GPU")  # `ray.init(num_gpus=...)` declares as many as needed
    is_ipc_supported: Any = always(False)  # verl sends weights through shared memory then
