"""The CPU as a verl platform.

Source: ``verl/plugin/platform/platform_base.py:PlatformBase`` of verl 0.9.1, whose methods these are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from verl.plugin.platform.platform_base import PlatformBase

from recipe.cpu_platform import device


class PlatformCPU(PlatformBase):
    """The host's processor. Several workers share it, each holding one logical Ray GPU."""

    @property
    def device_name(self) -> str:
        """Device type string of torch."""
        return "cpu"

    @property
    def vendor_name(self) -> str:
        """Vendor under which :mod:`recipe.cpu_platform.response_logits` stands in verl's engine registry."""
        return "generic"

    @property
    def device_module(self) -> ModuleType:
        """Stand-in for ``torch.cuda``."""
        return device

    def is_available(self) -> bool:
        """Return True: the CPU is always there."""
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Return False: the CPU is a choice, never the result of verl's auto-detection."""
        return False

    def current_device(self) -> str:
        """Return "cpu", not an index: in verl's ``tensor.to(get_device_id())`` a bare 0 means an accelerator."""
        return "cpu"

    def device_count(self) -> int:
        """Return 1: a process sees one CPU."""
        return device.device_count()

    def set_device(self, device_index: int) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Do nothing: CPU kernels have finished when they return."""

    def manual_seed(self, seed: int) -> None:
        """Seed the CPU generator."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed the CPU generator, which is the only one."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the settings are those of the CUDA allocator."""

    def empty_cache(self) -> None:
        """Do nothing: PyTorch caches no CPU memory."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """Return (None, None): a CPU has no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Collectives run over gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Variable that Ray sets per worker: its logical GPUs are numbered like real ones."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Yield at once: there is no device profiler."""
        yield

    def profiler_start(self) -> None:
        """Do nothing: there is no device profiler."""

    def profiler_stop(self) -> None:
        """Do nothing: there is no device profiler."""

    def ray_resource_name(self) -> str:
        """Workers take Ray's "GPU" resource, of which ``ray.init(num_gpus=...)`` declares as many as needed."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return no variable: Ray may set the logical device indices."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return False, which makes verl send weights through shared memory."""
        return False

    def cudart(self) -> None:
        """Return None: there is no CUDA runtime."""
        return None
