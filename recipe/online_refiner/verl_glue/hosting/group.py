"""The worker group that hosts the reference model pi_0 in replicas of verl's, on the training GPUs or on its own.

It is built from verl's own parts: a ``RolloutReplica`` per slice of the resource pool, as verl hosts reward models and
teachers (``verl/experimental/reward_loop/reward_model.py`` and ``verl/experimental/teacher_loop/teacher_model.py``).
Nobody ever sends it weights, so it answers as pi_0 during the whole run.
"""

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from verl.single_controller.ray.base import RayResourcePool, split_resource_pool
from verl.workers.rollout.replica import RolloutReplica, get_rollout_replica_class

from recipe.online_refiner.plan import HostedModel
from refiner_worker.client import HostedRefiner, RefinerClient, RefinerLostError, is_dead
from refiner_worker.engines import can_sleep

logger = logging.getLogger(__name__)

MAX_DEATHS = 3
"""The largest number of restarts per replica; a replica that dies more often is left out."""
RESTART_TIMEOUT_S = 900.0
"""The seconds that a dead replica may take to restart, since the GPUs of a lost node may never come back."""


class RefinerGroup(HostedRefiner):
    """Replicas of a model: launched once, woken and put to sleep around the refine stage, restarted when they died."""

    def __init__(self, hosted: HostedModel, *, pool: RayResourcePool, gpus_per_node: int) -> None:
        """Prepare the replicas, which take a whole pool; :func:`start` launches them."""
        self._hosted, self._gpus_per_node = hosted, gpus_per_node
        self._refiner = replace(hosted.use.first, max_model_len=hosted.max_model_len)
        self._num_launches = 0
        self._num_deaths: Counter[int] = Counter()
        self._problems: dict[int, str] = {}
        self._slices = split_resource_pool(pool, split_size=hosted.replica_size)
        self._replicas: dict[int, RolloutReplica] = {rank: self._new_replica(rank) for rank in range(len(self._slices))}

    def launches(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that launch the replicas."""
        return [self._launch(rank) for rank in self._replicas]

    def show(self) -> None:
        """Print where the replicas run, as verl prints its servers."""
        for rank, (pid, node) in enumerate(self.server_places()):
            print(f"{self._hosted.name} replica {rank}: server process {pid} on node {node}", flush=True)

    def client(self) -> RefinerClient:
        """Return a client of the replicas that run now."""
        servers = {replica.server_address: replica.server_handle for replica in self._replicas.values()}
        return RefinerClient(servers=servers, config=self._refiner)

    def server_places(self) -> list[tuple[int, str]]:
        """Return the process id of each replica's first server and Ray's id of its node."""
        return ray.get([replica.server_handle.__ray_call__.remote(_place) for replica in self._replicas.values()])

    def wake_up(self) -> int:
        """Make every replica ready to serve and return how many had to be started again.

        Raises:
            RefinerLostError: If all replicas are dead and none of them can be started again.
        """
        awake = _run(*map(self._wakes, self._replicas.values()))
        dead = [rank for rank, is_awake in zip(self._replicas, awake, strict=True) if not is_awake]
        for rank in dead:
            self._remove(rank)
        problems = {rank: why for rank in dead if (why := self._restart(rank))}
        self._problems |= problems
        if not self._replicas:
            raise RefinerLostError(f"no replica of the {self._hosted.name} is left: {self._problems}")
        return len(dead) - len(problems)

    def sleep(self) -> None:
        """Free the GPU memory of every replica; weights wait in host memory. A dead one is left to :meth:`wake_up`."""
        if self._sleeps:
            _run(*map(_sleep, self._replicas.values()))

    @property
    def _sleeps(self) -> bool:
        return not self._refiner.is_dedicated and can_sleep(self._hosted.rollout)

    async def _wakes(self, replica: RolloutReplica) -> bool:
        """Wake a replica and tell whether it is there: one may die between two questions."""
        if any(await asyncio.gather(*map(is_dead, replica.servers))):
            return False
        try:
            if self._sleeps:
                await replica.wake_up()
        except RayError as error:
            logger.warning("a refiner replica did not wake up: %s", error)
            return False
        return True

    def _new_replica(self, rank: int) -> RolloutReplica:
        # A restarted replica needs a name of its own: Ray frees the dead one's only some time later. So does a replica
        # of another model.
        self._num_launches += 1
        hosted = self._hosted
        replica = get_rollout_replica_class(hosted.rollout.name)(
            replica_rank=rank,
            config=hosted.rollout,
            model_config=hosted.model,
            gpus_per_node=self._gpus_per_node,
            name_suffix=f"refiner{hosted.first_gpu}_{self._num_launches}",
        )
        if any(one.samples > 1 for one in hosted.use.settings.values()):
            from recipe.online_refiner.verl_glue.hosting.servers import (
                SamplingServer,  # here: it needs vLLM, as the replica does
            )

            replica.server_class = ray.remote(SamplingServer)
        return replica

    async def _launch(self, rank: int) -> None:
        await self._replicas[rank].init_colocated(self._slices[rank])

    def _remove(self, rank: int) -> None:
        logger.warning("%s replica %d died", self._hosted.name, rank)
        dead = self._replicas.pop(rank)
        for actor in [*dead.servers, *dead.workers]:
            ray.kill(actor)

    def _restart(self, rank: int) -> str | None:
        """Restart a replica; return None, or the reason of a failure, after which the run continues with the others."""
        self._num_deaths[rank] += 1
        if self._num_deaths[rank] > MAX_DEATHS:
            why = f"it died {MAX_DEATHS} times before"
        else:
            self._replicas[rank] = self._new_replica(rank)
            try:
                # verl waits for the processes of a lost node without a limit.
                in_thread(partial(_run, self._launch(rank))).result(RESTART_TIMEOUT_S)
                return None
            except (RayError, concurrent.futures.TimeoutError) as error:
                del self._replicas[rank]
                why = str(error) or f"its GPUs or its server were not there within {RESTART_TIMEOUT_S:g} s"
        logger.warning("%s replica %d stays out of the run: %s", self._hosted.name, rank, why)
        return why


def start(hosted: Sequence[HostedModel], *, pool: RayResourcePool, gpus_per_node: int) -> list[RefinerGroup]:
    """Launch the replicas of some models on their parts of a pool, all at the same time, and let them sleep."""
    places = sorted(hosted, key=lambda one: one.first_gpu)
    sizes = [one.num_replicas * one.replica_size for one in places]
    num_idle = pool.world_size - sum(sizes)
    parts = split_resource_pool(pool, split_size=[*sizes, *([num_idle] if num_idle else [])])
    part_of = {one.first_gpu: part for one, part in zip(places, parts, strict=False)}
    groups = [RefinerGroup(one, pool=part_of[one.first_gpu], gpus_per_node=gpus_per_node) for one in hosted]
    _run(*(launch for group in groups for launch in group.launches()))
    for group in groups:
        group.show()
        group.sleep()
    return groups


def _place(_: Any) -> tuple[int, str]:
    return os.getpid(), ray.get_runtime_context().get_node_id()


async def _sleep(replica: RolloutReplica) -> None:
    try:
        await replica.sleep()
    except RayError:
        logger.warning("a refiner replica died before it could sleep")


def _run(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    async def gather() -> list[Any]:
        return await asyncio.gather(*coroutines)

    return asyncio.run(gather())


def in_thread(function: Callable[[], object]) -> concurrent.futures.Future[None]:
    """Call a function that may never return, in a thread which is left behind then; a pool would wait for it."""
    done: concurrent.futures.Future[None] = concurrent.futures.Future()

    def work() -> None:
        try:
            function()
            done.set_result(None)
        except BaseException as error:  # handed to who waits
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done
