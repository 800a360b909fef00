"""Weights from the trainer to rollout servers on other workers, without an accelerator.

verl's trainer ``separate_async`` refuses the backend ``naive``, which is for a trainer and servers on the same devices,
and its other backends need GPUs or NPUs. ``config/platform/cpu.yaml`` lets verl import this module in every worker;
``actor_rollout_ref.rollout.checkpoint_engine.backend=sockets`` selects what it registers.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray
import torch
import zmq
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

TIMEOUT_MS = 600_000  # a peer that neither takes nor sends a tensor for so long is dead: the update ends with an error


@CheckpointEngineRegistry.register("sockets")
class SocketCheckpointEngine(CheckpointEngine):
    """A checkpoint engine that sends each tensor from the trainer's first rank to every worker of the rollout."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        """Connect to nobody yet; each tensor is sent whole, whatever the bucket's size."""
        self._sockets: list[zmq.Socket] = []

    def prepare(self) -> str:
        """Listen, and return the address; the addresses of the trainer's ranks are not used."""
        address = f"tcp://{ray.util.get_node_ip_address()}"
        return f"{address}:{self._open(zmq.PULL).bind_to_random_port(address)}"

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[str]
    ) -> tuple[dict[str, list[list[str]]], dict[str, list[list[str]]]]:
        """Tell the trainer's first rank where the rollout's workers listen."""
        receivers: list[list[str]] = [metadata[actor_wg_world_size:], *[[]] * (actor_wg_world_size - 1)]
        return {"addresses": receivers}, {"addresses": [[]] * rollout_world_size}

    def init_process_group(self, addresses: list[str]) -> None:
        """Connect to receivers."""
        for address in addresses:
            self._open(zmq.PUSH).connect(address)

    def finalize(self) -> None:
        """Close all sockets."""
        for socket in self._sockets:
            socket.close()
        self._sockets = []

    @torch.no_grad()
    async def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Send the weights. Every rank takes part in gathering them."""
        receivers = [socket for socket in self._sockets if socket.type == zmq.PUSH]
        for name, weight in weights:
            data: Any = weight.detach().contiguous().view(-1).view(torch.uint8).numpy()
            for socket in receivers:
                socket.send_pyobj((name, weight.dtype, weight.shape), zmq.SNDMORE)
                socket.send(data)
        for socket in receivers:
            socket.send_pyobj(None)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Yield names and weights as they come."""
        (socket,) = self._sockets
        while (head := socket.recv_pyobj()) is not None:
            name, dtype, shape = head
            yield name, torch.frombuffer(bytearray(socket.recv()), dtype=torch.uint8).view(dtype).view(shape)

    def _open(self, kind: int) -> zmq.Socket:
        socket: zmq.Socket = zmq.Context.instance().socket(kind)
        for limit in (zmq.SNDHWM, zmq.RCVHWM):
            socket.setsockopt(limit, 4)  # tensors: whoever runs ahead would hold a second copy of the model
        for timeout in (zmq.SNDTIMEO, zmq.RCVTIMEO):
            socket.setsockopt(timeout, TIMEOUT_MS)
        self._sockets.append(socket)
        return socket
