"""Importing this module makes verl run on the CPU; ``VERL_USE_EXTERNAL_MODULES`` names it.

verl imports it at the end of its own ``__init__`` in every process: driver, Ray workers, vLLM engine and vLLM workers.
"""

import os

from verl.plugin.platform import platform_manager

from recipe.cpu_platform import check_environment, patches
from recipe.cpu_platform.platform import PlatformCPU

DEFAULT_SETTINGS: dict[str, str] = {
    # verl registers its FSDP engines for the devices "cuda" and "npu" only; the class itself runs on any device.
    "VERL_ENGINE_DEVICE": "cuda",
    # GiB of KV cache per vLLM engine. vLLM's own default takes half of the machine, and engines share it here.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # vLLM otherwise pins each engine to cores of its own, which starves the trainer and fails with many engines.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # vLLM compiles its log-prob kernel (vllm/v1/sample/ops/logprobs.py) even under enforce_eager. That needs a C++
    # compiler and takes up to a minute in each engine before the first token.
    "TORCHDYNAMO_DISABLE": "1",
    # Tokenizer threads fight with the compute threads for the same cores, and warn in each forked process.
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment variables that are set unless the user has set them; child processes inherit them."""


def activate() -> None:
    """Select the CPU platform and apply the patches, once per process."""
    check_environment()
    for name, value in DEFAULT_SETTINGS.items():
        os.environ.setdefault(name, value)
    platform_manager.PlatformRegistry.register(platform="cpu")(PlatformCPU)
    if not isinstance(platform_manager._current_platform, PlatformCPU):
        platform_manager.set_platform(PlatformCPU())
    patches.apply()


activate()
