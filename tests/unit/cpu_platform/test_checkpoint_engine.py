"""The checkpoint engine between two trainer workers and two rollout workers, in threads of this process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import torch
from verl.checkpoint_engine import CheckpointEngineRegistry

from recipe.cpu_platform.checkpoint_engine import SocketCheckpointEngine

WEIGHTS = {
    "matrix": torch.arange(6, dtype=torch.float32).view(2, 3),
    "transposed": torch.arange(6, dtype=torch.float32).view(2, 3).T,
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "number": torch.tensor(7),
    **{f"layer{n}": torch.full((3,), float(n)) for n in range(20)},
}


async def received(engine: SocketCheckpointEngine) -> dict[str, torch.Tensor]:
    return {name: weight async for name, weight in engine.receive_weights(global_steps=1)}


def test_every_worker_of_the_rollout_gets_all_weights() -> None:
    assert CheckpointEngineRegistry.get("sockets") is SocketCheckpointEngine
    trainer = [SocketCheckpointEngine(1 << 20, is_master=rank == 0) for rank in range(2)]
    rollout = [SocketCheckpointEngine(1 << 20) for _ in range(2)]
    gathered = [0, 0]

    def weights(rank: int) -> object:
        for item in WEIGHTS.items():
            gathered[rank] += 1
            yield item

    for _ in range(2):  # again, as after every step
        metadata = [engine.prepare() for engine in trainer + rollout]
        senders, receivers = SocketCheckpointEngine.build_topology(2, 2, metadata)
        for engines, arguments in ((trainer, senders), (rollout, receivers)):
            for engine, addresses in zip(engines, arguments["addresses"], strict=True):
                engine.init_process_group(addresses)
        with ThreadPoolExecutor() as threads:
            sending = [
                threads.submit(asyncio.run, engine.send_weights(weights(rank), global_steps=1))
                for rank, engine in enumerate(trainer)
            ]
            got = list(threads.map(lambda engine: asyncio.run(received(engine)), rollout))
            for one in sending:
                one.result()
        for engine in trainer + rollout:
            engine.finalize()
        for answer in got:
            assert answer.keys() == WEIGHTS.keys()
            for name, weight in WEIGHTS.items():
                torch.testing.assert_close(answer[name], weight, atol=0, rtol=0)
    assert gathered == [2 * len(WEIGHTS)] * 2, "every rank takes part in gathering them"
