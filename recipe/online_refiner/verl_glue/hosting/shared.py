"""The rollout's own servers as the refiner: a LoRA policy is an adapter on pi_0, so a request without it asks pi_0.

Nothing is loaded twice. The servers sleep outside the rollout, so refining happens while it goes on.
"""

from contextvars import ContextVar
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from recipe.online_refiner.verl_glue.hosting.servers import SamplingServer
from refiner_worker.client import HostedRefiner, RefinerClient
from refiner_worker.config import RefinerConfig

_asks_base_model: ContextVar[bool] = ContextVar("asks_base_model", default=False)


class SharedServer(SamplingServer):
    """verl's vLLM server, which can also be asked without the adapter.

    ``generate`` of verl attaches the adapter to every request once it is loaded, where ``lora_as_adapter`` is true. A
    call of a Ray actor has a context of its own, so what one call sets no other one sees.
    """

    @property
    def lora_as_adapter(self) -> bool:
        """Whether this call's requests get the adapter."""
        return super().lora_as_adapter and not _asks_base_model.get()

    async def generate_without_adapter(self, **request: Any) -> Any:
        """Generate with the base model, as ``generate`` does with the adapter."""
        _asks_base_model.set(True)
        return await self.generate(**request)


class SharedReplica(vLLMReplica):
    """verl's vLLM replica with the server above."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(SharedServer)


def register() -> None:
    """Let verl's rollout use the server above, in this process."""
    RolloutReplicaRegistry.register("vllm", lambda: SharedReplica)


class SharedRefiner(HostedRefiner):
    """The refiner of ``placement=shared``. It acts as a ``RefinerGroup``, but verl runs the servers."""

    def __init__(self, refiner: RefinerConfig, replicas: list[RolloutReplica]) -> None:
        servers = {replica.server_address: replica.server_handle for replica in replicas}
        self._client = RefinerClient(servers=servers, config=refiner, method="generate_without_adapter")

    def client(self) -> RefinerClient:
        """Return a client of the servers."""
        return self._client
