"""The CPU as a verl platform.

Source: ``verl/plugin/platform/platform_base.py:PlatformBase`` of verl 0.9.1, whose methods these are.
"""

from contextlib import nullcontext
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase

from recipe.cpu_platform import device


class PlatformCPU(PlatformBase):
    """The host's processor. Several workers share it, each holding one logical Ray GPU."""

    device_name: Any = "cpu"
    vendor_name: Any = "generic"
    """Vendor under which :mod:`recipe.cpu_platform.megatron.engine` stands in verl's engine registry."""
    device_module: Any = device
    """Stand-in for ``torch.cuda``."""
    device_count: Any = staticmethod(device.device_count)
    manual_seed: Any = staticmethod(torch.manual_seed)
    manual_seed_all: Any = staticmethod(torch.manual_seed)
    synchronize: Any = staticmethod(device.nothing)
    set_device = set_allocator_settings = empty_cache = synchronize
    profiler_start = profiler_stop = cudart = synchronize

    def is_available(self) -> bool:
        """Return True: the CPU is always there."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False: the CPU is a choice, never the result of verl's auto-detection."""
        return False

    def current_device(self) -> str:
        """Return "cpu", not an index: in verl's ``tensor.to(get_device_id())`` a bare 0 means an accelerator."""
        return "cpu"

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return (None, None): a CPU has no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Collectives run over gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Variable that Ray sets per worker: its logical GPUs are numbered like real ones."""
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        """Return a context that does nothing: there is no device profiler."""
        return nullcontext()

    def ray_resource_name(self) -> str:
        """Workers take Ray's "GPU" resource, of which ``ray.init(num_gpus=...)`` declares as many as needed."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return no variable: Ray may set the logical device indices."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False, which makes verl send weights through shared memory."""
        return False
