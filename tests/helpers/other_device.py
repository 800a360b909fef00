"""A platform of verl's with accelerators that are not NVIDIA's."""

from types import SimpleNamespace
from typing import Any

import verl  # noqa: F401  # first, because it loads the CPU platform itself

from recipe.cpu_platform.platform import PlatformCPU

NUM_DEVICES = 4


class Ascend(PlatformCPU):
    """A node with four devices that verl calls ``npu``; nothing can be computed on them."""

    device_name: Any = "npu"
    vendor_name: Any = "huawei"
    device_module: Any = SimpleNamespace(device_count=lambda: NUM_DEVICES)
