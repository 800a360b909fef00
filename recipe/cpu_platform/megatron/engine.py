"""verl's Megatron engine as it is found on the CPU; ``platform/cpu_megatron.yaml`` names :class:`CpuEngineConfig`.

Megatron is imported in the workers that build such an engine and in no other process of a job.
"""

import warnings
from dataclasses import dataclass
from typing import Any

from verl.workers.config import McoreEngineConfig
from verl.workers.engine import BaseEngine, EngineRegistry

from recipe.cpu_platform.megatron import bridges


@dataclass
class CpuEngineConfig(McoreEngineConfig):
    """verl's block ``megatron``, which may say ``dtype: float32``.

    Reason: ``verl/workers/config/engine.py:218`` (``McoreEngineConfig.__post_init__``) accepts only bfloat16 and
    float16, which many CPUs emulate. No other code checks the type.
    """

    def __post_init__(self) -> None:
        """Check the block as verl does, and take float32 as well."""
        dtype = self.dtype
        if dtype == "float32":
            object.__setattr__(self, "dtype", "bfloat16")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that mbridge is deprecated: there is no choice
            super().__post_init__()
        object.__setattr__(self, "dtype", dtype)


def _register(model_type: str, name: str) -> None:
    @EngineRegistry.register(model_type=model_type, backend="megatron", device="cuda", vendor="generic")
    class Deferred(BaseEngine):
        """Stands for an engine of verl's until one is built."""

        def __new__(cls, **settings: Any) -> BaseEngine:
            """Build verl's own."""
            bridges.apply()
            from verl.workers.engine import megatron

            return getattr(megatron, name)(**settings)


_register("language_model", "MegatronEngineWithLMHead")
_register("value_model", "MegatronEngineWithValueHead")
