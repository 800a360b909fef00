"""The device module of the CPU platform: what ``torch.cuda`` is to an NVIDIA GPU.

verl calls ``get_torch_device().<name>`` and means ``torch.cuda.<name>``. This module answers the calls that
``torch.cpu`` lacks, with the memory of the process and of the machine where a GPU would report its own; every other
name is looked up in ``torch.cpu``.

Source: ``verl/utils/device.py:get_torch_device`` and its call sites in verl 0.9.1.
"""

import platform
import resource
from typing import Any

import psutil
import torch


def is_available() -> bool:
    """Return True: the CPU is always there."""
    return True


def device_count() -> int:
    """Return 1: a process sees one CPU, whatever the number of cores."""
    return 1


def current_device() -> int:
    """Return the only index."""
    return 0


def get_device_name(device: Any = None) -> str:
    """Return the processor's name, as ``torch.cuda.get_device_name`` returns the card's."""
    return platform.processor() or platform.machine()


def set_device(device: Any) -> None:
    """Do nothing: there is one device."""


def empty_cache() -> None:
    """Do nothing: PyTorch caches no CPU memory."""


def ipc_collect() -> None:
    """Do nothing: CPU tensors have no IPC handles that wait for collection."""


def memory_allocated(device: Any = None) -> int:
    """Return the resident set size of this process in bytes."""
    return psutil.Process().memory_info().rss


def memory_reserved(device: Any = None) -> int:
    """Return the resident set size of this process in bytes: nothing is reserved beyond it."""
    return memory_allocated()


def max_memory_allocated(device: Any = None) -> int:
    """Return the largest resident set size that this process has had, in bytes."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024


def max_memory_reserved(device: Any = None) -> int:
    """Return the largest resident set size that this process has had, in bytes."""
    return max_memory_allocated()


def reset_peak_memory_stats(device: Any = None) -> None:
    """Do nothing: the kernel keeps the peak for the life of the process."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the machine's available and total memory in bytes."""
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Do nothing: the operating system sets the limit of a process."""


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of the CPU generator."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore the state of the CPU generator."""
    torch.set_rng_state(new_state)


def manual_seed(seed: int) -> None:
    """Seed the CPU generator."""
    torch.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the CPU generator, which is the only one."""
    torch.manual_seed(seed)


def __getattr__(name: str) -> Any:
    """Look up every other name (``synchronize``, ``Stream``, ``current_stream``, ...) in ``torch.cpu``."""
    return getattr(torch.cpu, name)
