"""verl's own SGLang server, asked as the refiner asks it, without the engine: its packages are empty shells here.

What the engine answers is written as ``generate_request`` of SGLang 0.5.12 answers. No GPU was there to run it.
"""

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import multiprocessing
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from refiner_worker.client import RefinerClient
from refiner_worker.engines import ENGINES

PREFIXES = ("sglang", "verl.workers.rollout.sglang_rollout")


class Shell(ModuleType):
    """A package that has everything and does nothing."""

    __path__: list[str] = []
    __version__ = "0.5.12"

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (SimpleNamespace,), {})


class Shells(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        own = name.partition(".")[0] == "sglang"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if own else None

    def create_module(self, spec: Any) -> ModuleType:
        return Shell(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@pytest.fixture(scope="module")
def server_class() -> Iterator[type]:
    """Return verl's server class."""
    before = set(sys.modules)
    finder = Shells()
    sys.meta_path.insert(0, finder)
    yield importlib.import_module("verl.workers.rollout.sglang_rollout.async_sglang_server").SGLangHttpServer
    sys.meta_path.remove(finder)
    for name in set(sys.modules) - before:
        if name.startswith(PREFIXES):
            del sys.modules[name]


class Manager:
    """SGLang's tokenizer manager as verl's server sees it: one answer, and what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.rid_to_state: dict[str, object] = {}
        self.aborted: list[str] = []
        self.event_loop: asyncio.AbstractEventLoop | None = None

    async def generate_request(self, request: Any, _: None) -> AsyncIterator[dict[str, Any]]:
        self.requests.append(request)
        prompt = [(None if n == 0 else -n / 4, token, None) for n, token in enumerate(request.input_ids)]
        own = [(-0.5, 7, None)][: request.sampling_params["max_new_tokens"]]
        meta_info = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": own,
            **({"input_token_logprobs": prompt} if request.return_logprob else {}),
        }
        yield {"output_ids": [token for _, token, _ in own], "meta_info": meta_info}

    def abort_request(self, name: str) -> None:
        self.aborted.append(name)


@pytest.fixture
def server(server_class: type) -> Any:
    """Return verl's server, with an engine that answers as SGLang does."""
    server = object.__new__(server_class)
    server.config = SimpleNamespace(
        max_model_len=32, response_length=8, prompt_length=16, enable_rollout_routing_replay=False, mtp=None
    )
    server.model_config = SimpleNamespace(lora_rank=0, lora={}, lora_adapter_path=None)
    server.replica_rank, server.global_steps, server._disaggregation_role = 0, None, "null"
    server.tokenizer_manager = Manager()
    return server


@pytest.fixture
def client(server: Any) -> RefinerClient:
    handle = SimpleNamespace(generate=SimpleNamespace(remote=server.generate))
    config = SimpleNamespace(temperature=0.0)
    return RefinerClient(servers={"a": handle}, config=config, engine="sglang", caller="me")  # type: ignore[arg-type,dict-item]


def test_what_the_refiner_asks_reaches_the_engine(server: Any, client: RefinerClient) -> None:
    assert asyncio.run(client.generate([1, 2, 3], ["</answer>"], max_new_tokens=5)) == [7]
    (request,) = server.tokenizer_manager.requests
    assert request.rid.startswith("me-") and request.input_ids == [1, 2, 3]
    expected = {"temperature": 0.0, "top_p": 1.0, "stop": ["</answer>"], "no_stop_trim": True, "max_new_tokens": 5}
    assert request.sampling_params == expected


def test_a_refinement_may_be_as_long_as_the_context_leaves(server: Any, client: RefinerClient) -> None:
    spare = ENGINES["sglang"].num_spare_tokens
    asyncio.run(client.generate([1] * (32 - 6 - spare), [], max_new_tokens=6))
    assert server.tokenizer_manager.requests[0].sampling_params["max_new_tokens"] == 6


def test_log_probs_of_a_response(server: Any, client: RefinerClient) -> None:
    # The engine says -n / 4 of position n: those of the response are 3 and 4.
    assert asyncio.run(client.log_probs([11, 12, 13], [14, 15])) == [-0.75, -1.0]
    (request,) = server.tokenizer_manager.requests
    assert (request.logprob_start_len, request.sampling_params["max_new_tokens"]) == (0, 1)


def test_a_dead_callers_requests_end() -> None:
    async def run() -> list[str]:
        manager = Manager()
        ENGINES["sglang"].abort(SimpleNamespace(tokenizer_manager=manager), "me")  # it has had no request
        manager.event_loop = asyncio.get_running_loop()
        manager.rid_to_state = {"me-1": None, "you-1": None, "me-2": None}
        await asyncio.to_thread(ENGINES["sglang"].abort, SimpleNamespace(tokenizer_manager=manager), "me")
        await asyncio.sleep(0)
        return manager.aborted

    assert asyncio.run(run()) == ["me-1", "me-2"]


def test_an_engine_whose_process_was_killed_has_failed() -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    server, has_failed = SimpleNamespace(), ENGINES["sglang"].has_failed
    assert not has_failed(server)
    process.kill()
    process.join(10)
    assert process.exitcode == -signal.SIGKILL
    assert has_failed(server)
    assert has_failed(server), "and it stays so"
