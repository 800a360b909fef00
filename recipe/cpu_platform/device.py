"""The device module of the CPU platform: what ``torch.cuda`` is to an NVIDIA GPU.

verl calls ``get_torch_device().<name>`` (``verl/utils/device.py`` of 0.9.1) and means ``torch.cuda.<name>``. This
module answers the calls that ``torch.cpu`` lacks, with the memory of the process and of the machine where a GPU would
report its own; every other name is looked up in ``torch.cpu``.
"""

import platform
import resource
from typing import Any

import psutil
import torch


def always(value: Any) -> Any:
    """Return a function or method that answers the same, whatever it is asked."""
    return staticmethod(lambda *_, **__: value)


is_available, device_count, current_device = always(True), always(1), always(0)
nothing = always(None)  # there is one device, kernels have ended when they return, and PyTorch caches no CPU memory
set_device = empty_cache = ipc_collect = reset_peak_memory_stats = set_per_process_memory_fraction = nothing
manual_seed = manual_seed_all = torch.manual_seed
set_rng_state = torch.set_rng_state


def get_device_name(device: Any = None) -> str:
    """Return the processor's name, as ``torch.cuda.get_device_name`` returns the card's."""
    return platform.processor() or platform.machine()


def memory_allocated(device: Any = None) -> int:
    """Return the resident set size of this process in bytes; nothing is reserved beyond it."""
    return psutil.Process().memory_info().rss


def max_memory_allocated(device: Any = None) -> int:
    """Return the largest resident set size that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the machine's available and total memory in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of the CPU generator."""
    return torch.get_rng_state()


def __getattr__(name: str) -> Any:
    """Look up every other name (``synchronize``, ``Stream``, ``current_stream``, ...) in ``torch.cpu``."""
    return getattr(torch.cpu, name)
