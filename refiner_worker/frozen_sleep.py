"""A vLLM engine whose weights never change: it falls asleep without copying them.

vLLM's sleep (level 1, ``vllm/device_allocator/cumem.py``) pins host memory and copies every weight into it, each time,
and drops the copy at the wake-up, since a trainer may send new weights. Nobody sends the refiner any. Here the copy of
the first sleep is kept: to sleep is to unmap the GPU's memory, to wake up is to map it and to copy once.
"""

import logging
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from vllm.device_allocator import cumem

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 << 20
"""What is compared at once with the kept copy."""


class FrozenAllocator(cumem.CuMemAllocator):
    """vLLM's allocator, which keeps the copy of what it offloads.

    The second sleep compares the copy with the GPU, byte by byte. Where they differ something writes to the weights,
    and from then on each sleep copies them, as vLLM's does.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__()
        self._kept: dict[int, torch.Tensor] = {}
        """By address on the GPU: a copy in pinned host memory, as bytes."""
        self._is_frozen: bool | None = None
        """Not known before the second sleep."""

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Release the GPU's memory; what has one of the tags comes back at the wake-up."""
        tags = (offload_tags,) if isinstance(offload_tags, str) else offload_tags or (self.default_tag,)
        offloaded = {address for address, data in self.pointer_to_data.items() if data.tag in tags}
        if self._kept and self._is_frozen is None and offloaded == self._kept.keys():
            self._is_frozen = all(_is_same(address, copy) for address, copy in self._kept.items())
            if not self._is_frozen:
                logger.warning("the refiner's weights changed while it was awake: each sleep copies them")
        if self._is_frozen and offloaded == self._kept.keys():
            super().sleep(())
            for address, copy in self._kept.items():
                self.pointer_to_data[address].cpu_backup_tensor = copy
            return
        self._kept.clear()  # before the next copy is made
        super().sleep(tags)
        if self._is_frozen is not False:
            self._kept = {address: self.pointer_to_data[address].cpu_backup_tensor for address in offloaded}


def _is_same(address: int, copy: torch.Tensor) -> bool:
    """Return whether the GPU's memory at an address holds what a copy holds."""
    buffer = torch.empty(min(CHUNK_BYTES, copy.numel()), dtype=torch.uint8, pin_memory=True)
    for start in range(0, copy.numel(), CHUNK_BYTES):
        part = copy[start : start + CHUNK_BYTES]
        cumem.libcudart.cudaMemcpy(buffer.data_ptr(), address + start, part.numel())
        if not torch.equal(buffer[: part.numel()], part):
            return False
    return True


class FrozenWorkerExtension(vLLMColocateWorkerExtension):
    """verl's extension of vLLM's worker, for an engine that nobody sends weights."""

    def __new__(cls, **kwargs: Any) -> "FrozenWorkerExtension":
        """Set up as verl does, with an allocator that keeps its copy."""
        if cumem.cumem_available and cumem.CuMemAllocator.instance is None:
            cumem.CuMemAllocator.instance = FrozenAllocator()
        return super().__new__(cls, **kwargs)
