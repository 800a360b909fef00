"""Every change to Megatron that ``sources.py`` cannot make, each with its reason.

``tests/unit/cpu_platform/test_megatron_bridges.py`` fails when Megatron or verl fixes or moves a function that is
replaced here.
"""

import logging
import warnings
from typing import Any

import torch

from recipe.cpu_platform import check_versions
from recipe.cpu_platform.megatron import sources
from recipe.cpu_platform.patches import let_megatron_be_imported

REQUIRED_VERSIONS: dict[str, str] = {"megatron-core": "==0.16.1", "mbridge": "==0.15.1"}


def apply() -> None:
    """Check the versions, load Megatron for the CPU and put everything in place; a second call changes nothing."""
    check_versions(REQUIRED_VERSIONS)
    sources.install()
    let_megatron_be_imported()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of apex and Transformer Engine, which are not there
        from megatron.core.models.gpt import gpt_layer_specs
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer import transformer_block

        from recipe.cpu_platform.megatron import layers

    # tensor_parallel/random.py:70: torch calls it when CUDA starts, which is never.
    random._set_cuda_rng_state = lambda new_state, device=None, graph_safe=False: torch.set_rng_state(new_state)
    # tensor_parallel/random.py:265: it warns each time when the generator of "the GPU" is the CPU's.
    logging.getLogger(random.__name__).setLevel(logging.ERROR)
    # models/gpt/gpt_layer_specs.py:45: the names exist with Transformer Engine only.
    gpt_layer_specs.HAVE_TE = True
    gpt_layer_specs.TESpecProvider, gpt_layer_specs.TENorm = layers.CpuSpecProvider, layers.Norm
    # transformer/transformer_block.py:69: a norm that refuses sequence parallelism.
    transformer_block.LayerNormImpl = layers.Norm
    if DistributedOptimizer.state_dict.__module__ != __name__:
        _resume_torchs_adam(DistributedOptimizer)


def _resume_torchs_adam(optimizer: Any) -> None:
    """Let a distributed optimizer load a checkpoint in a new process.

    Reason: without Transformer Engine and Apex its Adam is torch's, whose state has a tensor "step" for each parameter.
    ``optimizer/distrib_optimizer.py:642`` (``state_dict``), which loading calls too, asserts that there is one step
    already; line 825 (``load_state_dict``) gives all parameters one and the same tensor, which each of them increments.
    Line 940 copies into float32 parameters themselves, of which lower precisions have a second copy without gradient,
    and copies a step as well: 0, the new process's own, with which Adam would take loaded moments for those of a first
    step (``dp_reshardable``), or one that is not there (``fully_reshardable``). The step that was saved is set before.
    """
    state_dict, load_state_dict = optimizer.state_dict, optimizer.load_state_dict
    set_states = optimizer._set_main_param_and_optimizer_states

    def with_steps(self: Any) -> dict[str, Any]:
        state = self.optimizer.state
        for parameter in (one for group in self.optimizer.param_groups for one in group["params"]):
            if not state[parameter]:
                zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                state[parameter] = {"step": torch.tensor(0.0), **zeros}
        return state_dict(self)

    def with_own_steps(self: Any, loaded: dict[str, Any]) -> None:
        with torch.no_grad():
            load_state_dict(self, loaded)
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()

    def all_but_the_step(self: Any, parameter: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        set_states(self, parameter, {**tensors, "step": state["step"]})

    optimizer.state_dict, optimizer.load_state_dict = with_steps, with_own_steps
    optimizer._set_main_param_and_optimizer_states = all_but_the_step
