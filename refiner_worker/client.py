"""Requests to the refiner's replicas: generate a refinement, or the log-probs of given tokens."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar
from uuid import uuid4

import numpy as np
import ray
from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayActorError, RayError

from refiner_worker import engines
from refiner_worker.config import RefinerConfig
from refiner_worker.engines import ABSENT, Top
from refiner_worker.pictures import pictures_of

Scored = TypeVar("Scored")
SAMPLING = {"top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "ignore_eos": False}
"""The sampling settings of each request; a server takes missing ones from its rollout block, made from the policy's.

A penalty for repetition would also count the prompt's tokens, which hold the response that the refiner should repeat.
"""
PING_TIMEOUT_S = 30.0
MAX_REQUESTS_IN_FLIGHT = 256
"""The largest number of requests in flight per replica; more requests wait.

Ray lets a server have 1,000 calls at a time, and an asynchronous trainer may have requests of two steps.
"""
DEATHS = (RayActorError, OutOfMemoryError)
"""The errors of a call whose process has died; Ray's guard of a node's memory raises the second one."""


class RunEndedError(RuntimeError):
    """A process died, or failed so often that the run cannot continue. The text is one line for the user."""


class RefinerLostError(RunEndedError):
    """All replicas of a refiner are dead for good. This ends the run unless another data source has a refiner."""

    def __init__(self, why: str) -> None:
        """Keep the reason beside the line for a run that ends."""
        super().__init__(f"{why}. constraint.mode=none trains without one.")
        self.why = why


class CheckpointError(RunEndedError):
    """The checkpoint to resume cannot be read. The text names another checkpoint, if there is one."""


class RefinerRequestError(RuntimeError):
    """A request failed on every replica that could be asked, or its answer cannot be used."""

    def __init__(self, why: str, failure: str = "request") -> None:
        """Keep the reason, without lone surrogates since it is recorded, and the refinement's ``Verdict``."""
        super().__init__(why.encode(errors="replace").decode())
        self.failure = failure


async def is_dead(server: ActorHandle) -> bool:
    """Return whether a server, or the engine behind it, has died."""
    try:
        return await asyncio.wait_for(server.__ray_call__.remote(engines.has_failed), PING_TIMEOUT_S)
    except (TimeoutError, RayError):
        return True


@dataclass(slots=True, kw_only=True)
class RefinerClient:
    """A client that sends token ids, with their pictures, to the replica with the fewest of its requests in flight.

    It can be pickled until its first request: every Ray worker may hold one. A replica that dies is taken out of this
    client for good; the group's next client has its successor.
    """

    servers: dict[str, ActorHandle]
    """verl's rollout server of each replica, by its address."""
    config: RefinerConfig
    method: str = "generate"
    """The server's method that asks the engine for pi_0."""
    num_processes: int = 1
    """The number of processes that hold a copy of this client and share MAX_REQUESTS_IN_FLIGHT."""
    caller: str = ""
    """The name of this process, with which the ids of its requests begin."""
    by_source: "dict[str, RefinerClient]" = field(default_factory=dict)
    """The clients that replace this one for data sources of ``refiner.by_source``."""
    _num_in_flight: dict[str, int] = field(default_factory=dict)
    _slots: dict[tuple[asyncio.AbstractEventLoop, int], asyncio.Semaphore] = field(default_factory=dict)

    @property
    def replicas(self) -> dict[str, ActorHandle]:
        """The servers that are actors of this run, including servers of data sources, by address."""
        own = {address: server for one in self.by_source.values() for address, server in one.replicas.items()}
        return {**self.servers, **own}

    @property
    def handles(self) -> list[ActorHandle]:
        """The servers that are actors of this run, including servers of data sources."""
        return list(self.replicas.values())

    @property
    def addresses(self) -> set[str]:
        """The addresses of all servers, including servers of data sources."""
        return set(self.servers).union(*(one.servers for one in self.by_source.values()))

    def shared(self, num_processes: int, caller: str = "") -> Self:
        """Return the client for one of ``num_processes`` processes."""
        by_source = {source: one.shared(num_processes, caller) for source, one in self.by_source.items()}
        return replace(self, num_processes=num_processes, caller=caller, by_source=by_source)

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore in which a request is made (``async with``); it waits while too many are in flight.

        Without it, the last requests of a long queue in the engine would run out of time, and a dead replica would
        lose all of them.
        """
        key = asyncio.get_running_loop(), self.config.samples  # clients of data sources share the dict, and may differ
        if key not in self._slots:
            num_slots = MAX_REQUESTS_IN_FLIGHT * max(1, len(self.servers)) // (self.num_processes * self.config.samples)
            self._slots[key] = asyncio.Semaphore(max(1, num_slots))
        return self._slots[key]

    async def generate(
        self, prompt_ids: list[int], stop: str | None, max_new_tokens: int, stop_ids: Sequence[int] = (), num: int = 1
    ) -> list[list[int]]:
        """Return the token ids of ``num`` answers, which one request draws.

        Each answer includes its end: EOS, a token of ``stop_ids``, or the stop string.

        Raises:
            RefinerRequestError: If no replica could answer.
        """
        params: dict[str, Any] = {
            **SAMPLING,
            "max_tokens": max_new_tokens,
            "temperature": self.config.temperature,
            "stop": stop,
            "stop_token_ids": list(stop_ids),
            "detokenize": stop is not None,  # nobody reads the text, unless vLLM looks for a stop in it
        }
        if num == 1:
            return [list((await self._request(prompt_ids, params)).token_ids)]
        said = (await self._request(prompt_ids, {**params, "n": num})).extra_fields
        if engines.SAMPLES not in said:
            raise RefinerRequestError("the request was aborted")
        return list(said[engines.SAMPLES])

    async def log_probs(self, prompt_ids: list[int], response_ids: list[int]) -> list[float]:
        """Return log pi_0(response_t | prompt, response_<t), shape (len(response_ids),), at temperature 1.

        Raises:
            RefinerRequestError: If no replica could answer.
        """
        log_probs = await self._of_prompt(prompt_ids, response_ids, 0, "prompt_logprobs")
        return [entry[0] for entry in log_probs[0]]

    async def top_log_probs(self, prompt_ids: list[int], response_ids: list[int], k: int, num_ids: int) -> Top:
        """Return the k likeliest tokens at each place of a response, with log pi_0 of each, at temperature 1.

        Ids from ``num_ids`` on are dropped: no tokenizer has them, and models of a family may pad differently (the
        vocabulary of Qwen2.5-7B is 128 longer than that of Qwen2.5-0.5B).

        Raises:
            RefinerRequestError: If no replica could answer.
        """
        found = await self._of_prompt(prompt_ids, response_ids, k, "prompt_ids", "prompt_logprobs")
        ids, log_probs = np.array(found[0], np.int32).reshape(-1, k), np.array(found[1], np.float32).reshape(-1, k)
        return np.where(ids < num_ids, ids, 0), np.where(ids < num_ids, log_probs, np.float32(ABSENT))

    async def in_time(self, ask: Callable[..., Awaitable[Scored]], *arguments: Any) -> Scored | None:
        """Return the result of one of the two requests for log-probs; None if no replica answered in time."""
        try:
            async with self.slot():
                return await asyncio.wait_for(ask(*arguments), self.config.request_timeout_s)
        except (TimeoutError, RefinerRequestError):
            return None

    async def _of_prompt(
        self, prompt_ids: list[int], response_ids: list[int], k: int, *names: str
    ) -> list[list[list[Any]]]:
        """Return verl's log-probs at each place of a response: for the k likeliest tokens, or for its own (k = 0)."""
        # Greedy, as the refinements beside it: vLLM verifies speculative tokens differently where a batch also samples.
        # Without text: vLLM would decode each of k candidates at each place, in the thread that all requests share.
        params = {**SAMPLING, "max_tokens": 1, "prompt_logprobs": k, "temperature": 0.0, "detokenize": False}
        said = (await self._request(prompt_ids + response_ids, params)).extra_fields
        if not said.keys() >= set(names):  # an aborted request has none
            raise RefinerRequestError("the request was aborted")
        # Entry t is of token t + 1: verl shifts them left by one.
        places = slice(len(prompt_ids) - 1, len(prompt_ids) + len(response_ids) - 1)
        return [said[name][places] for name in names]

    def abort_requests(self) -> None:
        """End the requests of a dead process that had this client; otherwise they would be generated to their end."""
        for server in self.handles:
            server.__ray_call__.remote(engines.abort, self.caller)

    async def _request(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Return verl's ``TokenOutput``; a dead replica is taken out and the request goes to another one."""
        pictures = pictures_of(prompt_ids)
        seen = {} if pictures is None else pictures.request
        while self.servers:
            address = min(self.servers, key=lambda name: self._num_in_flight.get(name, 0))
            server = self.servers[address]
            # A copy for each attempt: the server takes entries out of the dict.
            call = getattr(server, self.method).remote(
                request_id=f"{self.caller}-{uuid4().hex}",
                prompt_ids=list(prompt_ids),
                sampling_params=dict(sampling_params),
                **seen,
            )
            self._num_in_flight[address] = self._num_in_flight.get(address, 0) + 1
            try:
                return await call
            except asyncio.CancelledError:
                ray.cancel(call)  # ends the server's coroutine, and with it the engine's request
                raise
            except RayError as error:
                if not await is_dead(server):
                    raise RefinerRequestError(str(error).strip().splitlines()[-1]) from error
                self.servers.pop(address, None)
            finally:
                self._num_in_flight[address] -= 1
        raise RefinerRequestError("no refiner replica is alive")


class HostedRefiner(ABC):
    """The interface of a placement of the refiner for the trainer."""

    @abstractmethod
    def client(self) -> RefinerClient:
        """Return a client of the servers that are alive."""

    def wake_up(self) -> int:
        """Make the refiner ready, and return the number of replicas that were restarted."""
        return 0

    def sleep(self) -> None:  # noqa: B027  # not all take turns
        """Release the refiner's memory, if it takes turns with other models."""
