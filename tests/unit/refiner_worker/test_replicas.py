"""What a client asks of replicas and reads of their answers, and when a group's replicas sleep.

A replica is an object in this process whose calls are awaited, as those of verl's server actor are; vLLM's numbers go
through verl's own function.
"""

import asyncio
import inspect
import multiprocessing
import os
import pickle
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from ray.exceptions import RayActorError, RayError
from verl.single_controller.ray import ResourcePoolManager
from verl.single_controller.ray.base import SubRayResourcePool
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.workers.config import RolloutConfig
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.utils import VLLM_LORA_INT_ID, extract_prompt_logprobs
from vllm.logprobs import Logprob
from vllm.sampling_params import RequestOutputKind

from recipe.online_refiner.verl_glue.hosting.group import MAX_DEATHS, RefinerGroup, start
from recipe.online_refiner.verl_glue.hosting.servers import extract
from recipe.online_refiner.verl_glue.hosting.shared import SharedServer
from recipe.online_refiner.verl_glue.hosting.start import Hosting
from refiner_worker.client import SAMPLING, RefinerClient, RefinerRequestError, RunEndedError
from refiner_worker.config import Colocated, RefinerConfig, read_refiner
from refiner_worker.engines import ABSENT, SAMPLES, can_sleep, has_failed
from refiner_worker.sources import RefinerBySource


class Call:
    """A method of an actor: ``remote`` begins a call."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            answer = self.function(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        return asyncio.get_running_loop().create_task(call())


class Replica:
    """A server that gives a prompt's token t the log-prob -t, and the ids 50, 51, ... less and less."""

    def __init__(self, *failures: RayError | None, is_dead: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.failures, self.is_dead = list(failures), is_dead
        self.generate = Call(self.answer)
        self.__ray_call__ = Call(self.look)
        # As verl's RolloutReplica, whose server it is:
        self.told: list[str] = []
        self.servers, self.workers = [self], ["its worker"]
        self.server_handle, self.server_address = self, f"at {id(self)}"

    async def wake_up(self) -> None:
        self.told.append("wake")

    async def sleep(self) -> None:
        self.told.append("sleep")

    def look(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.is_dead:
            raise RayActorError()
        return function(self, *args)

    def answer(self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.asked.append({"id": request_id, "ids": prompt_ids, **sampling_params})
        k = sampling_params.pop("prompt_logprobs", None)  # verl's server takes entries out of what it is given
        failure = self.failures.pop(0) if self.failures else None
        if failure:
            raise failure
        extra: dict[str, Any] = {}
        of_tokens = [
            {token: Logprob(-float(t), rank=1)}
            if not k
            else {50 + n: Logprob(-float(t + n), rank=n + 1) for n in range(k)}
            for t, token in enumerate(prompt_ids)
        ]
        extract_prompt_logprobs(SimpleNamespace(prompt_logprobs=[None, *of_tokens[1:]]), k, extra)
        return TokenOutput(token_ids=[7, 2], extra_fields=extra)


class Group(RefinerGroup):
    """A group of replicas in this process; a new one is there at once."""

    def __init__(self, replicas: dict[int, Replica], placement: str, rollout: dict[str, bool]) -> None:
        own = {"n_gpus_per_node": 1} if placement == "dedicated" else {}
        self._refiner = read_refiner({"model_path": "m", "response_length": 8, "placement": placement, **own})
        self._num_deaths, self._problems = Counter(), {}
        self._hosted = SimpleNamespace(rollout=rollout, name="refiner")  # type: ignore[assignment]
        self.replicas, self._replicas = replicas, replicas  # type: ignore[assignment]
        self.launched: list[int] = []

    def _new_replica(self, rank: int) -> Any:
        return Replica()

    async def _launch(self, rank: int) -> None:
        self.launched.append(rank)


def client(*replicas: Replica, **more: Any) -> RefinerClient:
    config = Colocated(model_path="m", response_length=8, temperature=0.25)
    return RefinerClient(servers={f"at {n}": one for n, one in enumerate(replicas)}, config=config, **more)  # type: ignore[misc]


def test_log_probs_are_those_of_the_responses_tokens() -> None:
    replica = Replica()
    found = asyncio.run(client(replica).log_probs([5, 6, 8], [9, 4, 2]))
    assert found == [-3.0, -4.0, -5.0], "the third token after the first one is the response's first"
    assert asyncio.run(client(replica).log_probs([5], [9])) == [-1.0]
    assert replica.asked[0]["ids"] == [5, 6, 8, 9, 4, 2]
    assert replica.asked[0]["prompt_logprobs"] == 0 and replica.asked[0]["temperature"] == 0.0
    assert not replica.asked[0]["detokenize"], "vLLM would decode every candidate"


def test_the_likeliest_tokens_are_those_at_the_responses_places() -> None:
    ids, log_probs = asyncio.run(client(Replica()).top_log_probs([5, 6], [9, 4], 3, num_ids=52))
    assert ids.tolist() == [[50, 51, 0], [50, 51, 0]], "no tokenizer has the third"
    np.testing.assert_array_equal(log_probs, np.array([[-2, -3, ABSENT], [-3, -4, ABSENT]], np.float32))


def test_an_answer_without_numbers_is_no_answer() -> None:
    replica = Replica()
    replica.generate = Call(lambda **_: TokenOutput(token_ids=[], stop_reason="aborted"))
    with pytest.raises(RefinerRequestError, match="aborted"):
        asyncio.run(client(replica).log_probs([5], [9]))


@pytest.mark.parametrize("stop", ["</refined>", None])
def test_a_request_says_how_to_write(stop: str | None) -> None:
    replica = Replica()
    assert asyncio.run(client(replica, caller="w1").generate([5, 6], stop, 6)) == [[7, 2]]
    (asked,) = replica.asked
    assert asked.pop("id").startswith("w1-")
    params = {"max_tokens": 6, "temperature": 0.25, "stop": stop, "stop_token_ids": [], **SAMPLING}
    assert asked == {"ids": [5, 6], "detokenize": stop is not None, **params}


def test_no_key_of_the_policys_rollout_block_changes_how_the_refiner_writes() -> None:
    """Where a request lacks a key, verl's server takes it from its block, which is made from the policy's."""
    replica = Replica()
    asyncio.run(client(replica).generate([5, 6], None, 6))
    asyncio.run(client(replica).log_probs([5, 6], [9]))
    source = inspect.getsource(vllm_async_server.vLLMHttpServer.generate)
    of_block = set(re.findall(r'setdefault\("(\w+)", self\.config\.get', source))
    assert of_block == {"repetition_penalty", "ignore_eos"}, "verl takes others now"
    for asked in replica.asked:
        assert of_block <= asked.keys() and (asked["repetition_penalty"], asked["ignore_eos"]) == (1.0, False)
    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    by_policy = set(re.findall(r"(\w+)=", inspect.getsource(worker.generate_sequences).split("dict(")[1]))
    assert {"temperature", "top_p", "top_k", "repetition_penalty"} <= by_policy & replica.asked[0].keys()


def test_several_answers_are_drawn_by_one_request() -> None:
    replica = Replica()
    outputs = [SimpleNamespace(token_ids=(7, 2)), SimpleNamespace(token_ids=(8, 2))]

    def answer(**asked: Any) -> TokenOutput:
        said, found = replica.answer(**asked), dict[str, Any]()
        extract(SimpleNamespace(outputs=outputs), None, found)
        return said.model_copy(update={"extra_fields": found})

    replica.generate = Call(answer)
    one = client(replica)
    assert asyncio.run(one.generate([5, 6], None, 6, num=2)) == [[7, 2], [8, 2]]
    assert [(asked["n"], asked["ids"]) for asked in replica.asked] == [(2, [5, 6])]
    outputs.pop()
    with pytest.raises(RefinerRequestError, match="aborted"):
        asyncio.run(one.generate([5, 6], None, 6, num=2))


def test_another_replica_answers_for_a_dead_one() -> None:
    dead, alive = Replica(RayActorError(), is_dead=True), Replica()
    one = client(dead, alive)
    assert asyncio.run(one.log_probs([5], [9])) == [-1.0]
    assert dead.asked[0]["prompt_logprobs"] == alive.asked[0]["prompt_logprobs"] == 0, "the whole request"
    assert one.handles == [alive]
    alive.failures, alive.is_dead = [RayActorError()], True
    with pytest.raises(RefinerRequestError, match="no refiner replica"):
        asyncio.run(one.log_probs([5], [9]))


def test_a_failure_of_one_that_lives_costs_the_request_only() -> None:
    replica = Replica(RayError("why\nit failed"))
    one = client(replica)
    with pytest.raises(RefinerRequestError, match="^it failed$"):
        asyncio.run(one.log_probs([5], [9]))
    assert asyncio.run(one.log_probs([5], [9])) == [-1.0]


def test_requests_go_to_the_replica_with_the_fewest_under_way() -> None:
    replicas = [Replica(), Replica(), Replica()]

    async def ask() -> None:
        one = client(*replicas)
        await asyncio.gather(*(one.generate([n], None, 1) for n in range(6)))
        assert [len(replica.asked) for replica in replicas] == [2, 2, 2]

    asyncio.run(ask())


def test_a_replica_that_answered_is_free_again() -> None:
    busy, free = Replica(), Replica()

    async def ask() -> None:
        done = asyncio.Event()

        async def later(**asked: Any) -> TokenOutput:
            await done.wait()
            return busy.answer(**asked)

        busy.generate, one = Call(later), client(busy, free)
        calls = []
        for n in range(4):
            calls.append(asyncio.create_task(one.generate([n], None, 1)))
            for _ in range(9):  # time enough for an answer
                await asyncio.sleep(0)
        done.set()
        assert await asyncio.gather(*calls) == [[[7, 2]]] * 4
        assert [asked["ids"] for asked in free.asked] == [[1], [2], [3]]

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("num_replicas", "num_processes", "samples", "expected"),
    [(1, 1, 1, 256), (2, 4, 1, 128), (1, 300, 1, 1), (1, 4, 4, 16)],
)
def test_processes_share_what_a_replica_takes(
    num_replicas: int, num_processes: int, samples: int, expected: int
) -> None:
    async def count() -> int:
        one = client(*(Replica() for _ in range(num_replicas)), num_processes=num_processes)
        one.config.samples = samples
        assert one.slot() is one.slot()
        return one.slot()._value

    assert asyncio.run(count()) == expected


@pytest.mark.parametrize("order", [(1, 4), (4, 1)])
def test_a_data_source_with_other_samples_has_its_own_share(order: tuple[int, int]) -> None:
    """Whichever asks first; both know what is in flight."""

    async def count() -> dict[int, int]:
        common = client(Replica())
        clients = {num: replace(common, config=replace(common.config, samples=num)) for num in order}
        assert all(one._num_in_flight is common._num_in_flight for one in clients.values())
        return {num: one.slot()._value for num, one in clients.items()}

    assert asyncio.run(count()) == {1: 256, 4: 64}


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        ({"free_cache_engine": True}, True),  # verl's class adds the other one, true
        ({"free_cache_engine": True, "enable_sleep_mode": True}, True),
        ({"free_cache_engine": True, "enable_sleep_mode": False}, False),
        ({"free_cache_engine": False, "enable_sleep_mode": True}, False),
    ],
)
@pytest.mark.parametrize("placement", ["colocated", "dedicated"])
def test_replicas_sleep_where_they_take_turns(rollout: dict[str, bool], expected: bool, placement: str) -> None:
    assert can_sleep(rollout) is expected
    group = Group({0: Replica()}, placement, rollout)
    assert group.wake_up() == 0
    group.sleep()
    assert group.replicas[0].told == (["wake", "sleep"] if expected and placement == "colocated" else [])


def test_replicas_on_the_training_gpus_start_when_the_policy_is_loaded() -> None:
    """An engine measures the free memory of its GPU when it starts. Here, where no Ray runs, to start is an error."""
    blocks: Any = SimpleNamespace(refiner=read_refiner({"model_path": "m", "response_length": 8}))
    plan: Any = SimpleNamespace()
    hosting = Hosting(OmegaConf.create({"trainer": {"device": "cuda"}}), blocks, plan)
    pools = hosting.begin(ResourcePoolManager(resource_pool_spec={"global_pool": [1]}, mapping={}))
    assert pools.resource_pool_dict == {}


@pytest.mark.parametrize(("num_deaths", "num_restarts", "left"), [(0, 1, [0, 1, 2]), (MAX_DEATHS, 0, [0, 2])])
def test_what_follows_when_a_replica_died(
    monkeypatch: pytest.MonkeyPatch, num_deaths: int, num_restarts: int, left: list[int]
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr("ray.kill", killed.append)
    replicas = {rank: Replica(is_dead=rank == 1) for rank in range(3)}
    group = Group(dict(replicas), "colocated", {"free_cache_engine": True})
    group._num_deaths[1] = num_deaths
    assert group.wake_up() == num_restarts
    assert killed == [replicas[1], "its worker"]
    assert group.launched == [1] * num_restarts
    assert sorted(group._replicas) == left
    assert all(group._replicas[rank] is replicas[rank] for rank in (0, 2))
    assert len(group.client().servers) == len(left)
    assert all(replicas[rank].told == ["wake"] for rank in (0, 2)) and replicas[1].told == []


def test_a_replica_that_cannot_start_again_costs_the_run_only_if_it_was_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ray.kill", lambda _: None)

    async def fail(self: Group, rank: int) -> None:
        raise RayError("no GPU")

    monkeypatch.setattr(Group, "_launch", fail)
    group = Group({0: Replica(), 1: Replica(is_dead=True)}, "colocated", {"free_cache_engine": True})
    assert group.wake_up() == 0 and sorted(group._replicas) == [0]
    with pytest.raises(RunEndedError, match="no replica of the refiner is left: .*no GPU"):
        Group({0: Replica(is_dead=True)}, "colocated", {"free_cache_engine": True}).wake_up()


def by_source() -> RefinerConfig:
    own = {"a": {}, "b": {"model_path": "x", "samples": 2, "temperature": 1}, "c": {"model_path": "x"}}
    return read_refiner(
        {"model_path": "m", "response_length": 8, "placement": "dedicated", "n_gpus_per_node": 2, "by_source": own}
    )


def test_a_model_that_is_lost_costs_its_own_data_sources(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whichever it is; the last one ends the run."""
    monkeypatch.setattr("ray.kill", lambda _: None)

    async def fail(self: Group, rank: int) -> None:
        raise RayError("no GPU")

    monkeypatch.setattr(Group, "_launch", fail)
    for dead, lost in (({"common"}, ["a"]), ({"own"}, ["b", "c"])):
        groups = {name: Group({0: Replica(is_dead=name in dead)}, "dedicated", {}) for name in ("common", "own")}
        both = RefinerBySource(groups["common"], by_source(), {"b": groups["own"], "c": groups["own"]})
        for _ in range(2):  # also in the next step
            caplog.clear()
            assert both.wake_up() == 0
            assert "no GPU" in caplog.messages[-1] and caplog.messages[-1].endswith("sources go without refinements")
            client = pickle.loads(pickle.dumps(both.client()))
            assert [source for source, one in client.by_source.items() if not one.servers] == lost
            assert len(client.addresses) == 1
    groups = {name: Group({0: Replica(is_dead=True)}, "dedicated", {}) for name in ("common", "own")}
    both = RefinerBySource(groups["common"], by_source(), {"b": groups["own"], "c": groups["own"]})
    with pytest.raises(RunEndedError, match="no replica of the refiner is left: .*no GPU.*. constraint.mode=none"):
        both.wake_up()


def test_a_data_source_asks_its_own_model_with_its_own_settings() -> None:
    """What is in flight is counted by model: data sources that share one share the counts."""
    common, own = (Group({0: Replica()}, "dedicated", {}) for _ in range(2))
    own._refiner = replace(own._refiner, max_model_len=77)
    both = RefinerBySource(common, by_source(), {"b": own, "c": own})
    client = both.client()
    a, b, c = client.by_source.values()
    assert a.servers is client.servers and b.servers is c.servers and not a.servers.keys() & b.servers.keys()
    assert b._num_in_flight is c._num_in_flight is not a._num_in_flight is client._num_in_flight
    assert [(one.config.samples, one.config.max_model_len) for one in (a, b, c)] == [(1, None), (2, 77), (1, 77)]
    assert client.addresses == {*a.servers, *b.servers} == {*client.replicas} and len(client.handles) == 2


def test_each_model_has_its_part_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight GPUs: the larger replicas first, the common model behind them, and one GPU is left."""
    launched: list[tuple[str, int, int]] = []

    async def launch(self: RefinerGroup, rank: int) -> None:
        part = self._slices[rank]
        launched.append((self._hosted.name, int(part.start_bundle_index), part.world_size))

    monkeypatch.setattr(RefinerGroup, "_launch", launch)
    monkeypatch.setattr(RefinerGroup, "_new_replica", lambda self, rank: Replica())
    monkeypatch.setattr(RefinerGroup, "show", lambda self: None)
    pool = SubRayResourcePool([], start_bundle_index=0, subgroup_world_size=8, process_on_nodes=[4, 4])
    uses = by_source().models
    hosted = [
        SimpleNamespace(use=use, name=name, max_model_len=9, replica_size=size, num_replicas=number, first_gpu=first)
        for use, name, size, number, first in zip(uses, ("m", "x"), (1, 2), (3, 2), (4, 0), strict=True)
    ]
    common, own = start(hosted, pool=pool, gpus_per_node=4)  # type: ignore[arg-type]
    assert launched == [("m", 4, 1), ("m", 5, 1), ("m", 6, 1), ("x", 0, 2), ("x", 2, 2)]
    assert (common.client().config.model_path, own.client().config.model_path) == ("m", "x")
    assert own.client().config.max_model_len == 9


@pytest.mark.parametrize("signal_of_death", [None, signal.SIGKILL, signal.SIGTERM])
def test_an_engine_of_other_processes_is_dead_when_one_of_them_is(signal_of_death: int | None) -> None:
    """SGLang's server answers while its scheduler, which it started, is gone."""
    server, context = SimpleNamespace(tokenizer_manager="there"), multiprocessing.get_context("spawn")
    released = context.Event()
    scheduler = context.Process(target=released.wait)
    scheduler.start()
    try:
        assert not has_failed(server)
        if signal_of_death is not None:
            os.kill(scheduler.pid or 0, signal_of_death)
            scheduler.join()
        later = context.Process(target=int)  # the server's other processes are not its engine
        later.start()
        later.join()
        assert has_failed(server) == (signal_of_death is not None)
    finally:
        released.set()
        scheduler.join()


def test_vllms_engine_says_itself_whether_it_is_dead() -> None:
    assert has_failed(SimpleNamespace(engine=SimpleNamespace(errored=True)))
    assert not has_failed(SimpleNamespace(engine=SimpleNamespace(errored=False)))
    assert not has_failed(SimpleNamespace()), "a later node's server of a replica has none"


class ServerEngine:
    """vLLM's engine behind a server of verl's, with an adapter: it keeps what it is asked, and writes samples."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def list_loras(self) -> set[int]:
        return {VLLM_LORA_INT_ID}

    async def generate(self, **asked: Any) -> AsyncIterator[Any]:
        self.asked.append(asked)
        outputs = [
            SimpleNamespace(token_ids=[7 + n, 2], finish_reason="stop") for n in range(asked["sampling_params"].n)
        ]
        yield SimpleNamespace(outputs=outputs)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a server of a LoRA policy, without the process and the engine that verl gives it."""
    monkeypatch.setattr(vllm_async_server, "extract_prompt_logprobs", extract)
    found: Any = object.__new__(SharedServer)
    found.engine, found.config = ServerEngine(), RolloutConfig(name="vllm", max_model_len=64)
    found.model_config = SimpleNamespace(lora_rank=8, lora={}, processor=None)
    found._disaggregation_role = found.global_steps = None
    found._submission_paused, found._admitting, found.replica_rank = False, 0, 0
    return found


def test_a_shared_server_leaves_the_adapter_out_for_the_refiner_alone(server: Any) -> None:
    """A call of a Ray actor has a context of its own, as a task has."""

    async def ask() -> None:
        for method in (server.generate_without_adapter, server.generate):
            await asyncio.create_task(method(prompt_ids=[5], sampling_params={"max_tokens": 4}, request_id="a"))

    asyncio.run(ask())
    assert [asked["lora_request"] is None for asked in server.engine.asked] == [True, False]


def test_a_server_waits_for_all_samples_of_a_request(server: Any) -> None:
    params = {"max_tokens": 4, "n": 2}
    said = asyncio.run(server.generate(prompt_ids=[5], sampling_params=params, request_id="a"))
    assert said.extra_fields[SAMPLES] == [[7, 2], [8, 2]]
    assert server.engine.asked[0]["sampling_params"].output_kind is RequestOutputKind.FINAL_ONLY
