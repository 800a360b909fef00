"""Importing this module makes verl run on the CPU; ``VERL_USE_EXTERNAL_MODULES`` names it.

verl imports it at the end of its own ``__init__`` in every process: driver, Ray workers, vLLM engine and vLLM workers.
"""

import os

from verl.plugin.platform import platform_manager

from recipe.cpu_platform import ENVIRONMENT, check_environment, patches
from recipe.cpu_platform.platform import PlatformCPU


def activate() -> None:
    """Select the CPU platform and apply the patches, once per process."""
    check_environment()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    platform_manager.PlatformRegistry.register(platform="cpu")(PlatformCPU)
    if not isinstance(platform_manager._current_platform, PlatformCPU):
        platform_manager.set_platform(PlatformCPU())
    patches.apply()


activate()
