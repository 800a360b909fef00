"""Every change to Megatron that ``sources.py`` cannot make, each with its reason.

``tests/unit/cpu_platform/test_megatron_bridges.py`` fails when Megatron or verl mends what is bridged, or moves it.
"""

import logging
import warnings

import torch

from recipe.cpu_platform.megatron import sources
from recipe.cpu_platform.patches import check_versions, let_megatron_be_imported

REQUIRED_VERSIONS: dict[str, str] = {"megatron-core": "0.16.1", "mbridge": "0.15.1"}


def apply() -> None:
    """Load Megatron for the CPU and put everything in place; a second call changes nothing.

    Raises:
        RuntimeError: A package is missing or of another version.
    """
    check_versions(REQUIRED_VERSIONS)
    sources.install()
    let_megatron_be_imported()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of apex and Transformer Engine, which are not there
        from megatron.core.models.gpt import gpt_layer_specs
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer import transformer_block

        from recipe.cpu_platform.megatron import layers

    # tensor_parallel/random.py:70: torch calls it when CUDA starts, which is never.
    random._set_cuda_rng_state = _set_rng_state
    # tensor_parallel/random.py:265: it warns each time when the generator of "the GPU" is the CPU's.
    logging.getLogger(random.__name__).setLevel(logging.ERROR)
    # models/gpt/gpt_layer_specs.py:45: the names exist with Transformer Engine only.
    gpt_layer_specs.HAVE_TE = True
    gpt_layer_specs.TESpecProvider, gpt_layer_specs.TENorm = layers.CpuSpecProvider, layers.Norm
    # transformer/transformer_block.py:69: a norm that refuses sequence parallelism.
    transformer_block.LayerNormImpl = layers.Norm


def _set_rng_state(new_state: torch.Tensor, device: object = None, graph_safe: bool = False) -> None:
    torch.set_rng_state(new_state)
