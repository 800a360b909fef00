"""Requests that nobody waits for any longer, in a replica that runs; a part of refiner_group_probe.py."""

import asyncio
import contextlib
import dataclasses
from typing import Any

import psutil
import ray
from ray.exceptions import RayError

from refiner_worker.client import RefinerClient


async def give_up(client: RefinerClient, prompts: list[list[int]]) -> int:
    """Give requests up while they are answered; return how many of them end in the engine."""

    def count_aborts(server: Any) -> None:  # defined here: the server does not find this file
        abort, server.num_aborted = server.engine.abort, 0

        async def counting(*args: Any, **kwargs: Any) -> None:
            server.num_aborted += 1
            await abort(*args, **kwargs)

        server.engine.abort = counting

    server = next(iter(client.servers.values()))
    await server.__ray_call__.remote(count_aborts)
    requests = [asyncio.create_task(client.generate(prompt, [], client.config.response_length)) for prompt in prompts]
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    while await server.__ray_call__.remote(lambda server: server.engine.output_processor.has_unfinished_requests()):
        await asyncio.sleep(0.01)
    return await server.__ray_call__.remote(lambda server: server.num_aborted)


async def abandon(client: RefinerClient, engine: psutil.Process, prompts: list[list[int]]) -> dict[str, Any]:
    """Let a caller die among its requests, beside another one's; return how many of both the engine has then."""

    @ray.remote
    class Caller:
        async def ask(self, client: RefinerClient) -> None:
            await asyncio.gather(*(client.generate(prompt, [], client.config.response_length) for prompt in prompts))

    server = next(iter(client.servers.values()))
    clients = {name: dataclasses.replace(client, caller=name, _slots={}) for name in ("dead", "alive")}
    callers = {name: Caller.remote() for name in clients}

    async def unfinished(name: str) -> int:
        return await server.__ray_call__.remote(
            lambda server: sum(one.startswith(name) for one in server.engine.output_processor.external_req_ids)
        )

    engine.suspend()  # nothing is answered meanwhile
    calls = {name: callers[name].ask.remote(client) for name, client in clients.items()}
    while await unfinished("dead") < len(prompts) or await unfinished("alive") < len(prompts):
        await asyncio.sleep(0.01)
    ray.kill(callers["dead"])
    with contextlib.suppress(RayError):
        await calls["dead"]
    found = {"left_behind": await unfinished("dead")}
    clients["dead"].abort_requests()
    while await unfinished("dead"):
        await asyncio.sleep(0.01)
    found["left_of_the_other"] = await unfinished("alive")
    engine.resume()
    await calls["alive"]
    return found
