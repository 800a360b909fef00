"""The driver's side of the refine workers: who works on which rows, and what follows when one dies."""

import logging
from dataclasses import replace
from typing import Any
from uuid import uuid4

import ray
from omegaconf import DictConfig
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from transfer_queue import KVBatchMeta

from recipe.online_refiner import queue
from recipe.online_refiner.refine_worker import RefineWorker
from refiner_worker.client import RefinerClient

logger = logging.getLogger(__name__)


class RefineWorkers:
    """Refine workers spread over the nodes, as verl spreads its agent loop workers.

    They are started with the first rows.
    """

    def __init__(self, config: DictConfig, tokenizer: Any, reward_workers: list[ActorHandle], num_workers: int) -> None:
        """Start nothing yet."""
        self._arguments = (config, tokenizer, reward_workers)
        self._num_workers, self._num_started = num_workers, 0
        self._workers: list[ActorHandle] = []
        self._recording: list[Any] = []

    def start(self) -> list[ActorHandle]:
        """Start the workers, once, and return them."""
        if not self._workers:
            self._workers = [self._start() for _ in range(self._num_workers)]
        return self._workers

    def each(self, method: str, rows: KVBatchMeta, *arguments: Any, attempts: int = 1) -> list[tuple[KVBatchMeta, Any]]:
        """Call a method of every :class:`RefineWorker` with a part of some rows, whole groups together, and arguments.

        A part whose worker dies is tried so many times, and a new one takes its place.

        Returns:
            Each part with what its worker returned; None where the workers died.
        """
        self.start()
        parts = queue.shards(rows, self._num_workers)
        # Replicas are shared: each worker gets its part of the requests that may be in flight.
        own = [[_of_one(argument, len(parts)) for argument in arguments] for _ in parts]
        calls = [getattr(self._workers[n], method).remote(part, *own[n]) for n, part in enumerate(parts)]
        answers: list[tuple[KVBatchMeta, Any]] = []
        for index, (part, call) in enumerate(zip(parts, calls, strict=True)):
            try:
                answers.append((part, ray.get(call)))
            except RayActorError as error:
                self._replace(index, error)
                for client in own[index]:
                    if isinstance(client, RefinerClient):
                        client.abort_requests()
                again = [(part, None)] if attempts == 1 else self.each(method, part, *arguments, attempts=attempts - 1)
                answers += again
        return answers

    def record(self, step: int, part: int, rows: KVBatchMeta) -> None:
        """Let the records of some rows of a step's mini-batch be written, and do not wait; :meth:`finish` does."""
        shards = enumerate(queue.shards(rows, self._num_workers))
        self._recording += [(index, self._workers[index].record.remote(step, part, shard)) for index, shard in shards]

    def finish(self) -> None:
        """Wait until all records are written; those of a worker that died are lost."""
        recording, self._recording = self._recording, []
        for index, call in recording:
            try:
                ray.get(call)
            except RayActorError as error:
                self._replace(index, error)

    def _replace(self, index: int, error: RayActorError) -> None:
        logger.warning("refine worker %d died, another one takes its place: %s", index, str(error).splitlines()[0])
        ray.kill(self._workers[index])  # one that is only out of reach must not write later on
        self._workers[index] = self._start()

    def _start(self) -> ActorHandle:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        number, self._num_started = self._num_started, self._num_started + 1
        place = NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=True)
        return ray.remote(RefineWorker).options(scheduling_strategy=place).remote(*self._arguments, f"w{number}")


def _of_one(argument: Any, num_workers: int) -> Any:
    is_client = isinstance(argument, RefinerClient)
    return replace(argument, num_processes=num_workers, caller=uuid4().hex) if is_client else argument
