"""What differs between the engines behind verl's rollout servers, where the refiner needs more than verl makes alike.

verl itself translates the length limit and the log-probs of prompts (``generate`` of both servers). Functions on a
server run in its process, beside the event loop of its engine. Needs neither torch nor verl.
"""

import asyncio
import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refiner_worker.drafts import DRAFTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One of them."""

    has_failed: Callable[[Any], bool]
    """Tell whether the engine of a server, processes of its own, is gone while the server answers."""
    abort: Callable[[Any, str], None]
    """End the requests on a server whose ids begin with a caller's name."""
    tokenizer_key: str
    """What names another tokenizer than the model's, in verl's rollout block."""
    drafts: tuple[str, ...] = ()
    """Values of ``refiner.draft`` that it knows."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the refiner needs of verl's rollout block."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Of every request: the answer keeps the EOS token or the stop string that ended it."""
    num_spare_tokens: int = 0
    """Of the context length, what a request can never fill."""


def can_sleep(rollout: Mapping[str, Any]) -> bool:
    """Tell whether an engine with verl's block of settings frees its memory while it waits.

    verl's own config does not have ``enable_sleep_mode``: its class adds it, true, when a server starts.
    """
    return bool(rollout["free_cache_engine"] and rollout.get("enable_sleep_mode", True))


def _vllm_has_failed(server: Any) -> bool:
    engine = getattr(server, "engine", None)  # of a replica over several nodes only the first one's server has it
    return bool(engine is not None and engine.errored)


def _vllm_abort(server: Any, caller: str) -> None:
    engine = getattr(server, "engine", None)
    if engine is not None and engine.output_handler is not None:  # it has had requests
        asyncio.run_coroutine_threadsafe(_vllm_abort_requests(engine, caller), engine.output_handler.get_loop())


async def _vllm_abort_requests(engine: Any, caller: str) -> None:
    await engine.abort([name for name in engine.output_processor.external_req_ids if name.startswith(f"{caller}-")])


def _sglang_has_failed(server: Any) -> bool:
    """Tell whether one of the processes ended that were there when this was first asked: nobody tells the server."""
    server.refiner_children = getattr(server, "refiner_children", None) or multiprocessing.active_children()
    return not all(child.is_alive() for child in server.refiner_children)


def _sglang_abort(server: Any, caller: str) -> None:
    manager = getattr(server, "tokenizer_manager", None)
    if manager is not None and manager.event_loop is not None:  # it has had requests
        manager.event_loop.call_soon_threadsafe(_sglang_abort_requests, manager, caller)


def _sglang_abort_requests(manager: Any, caller: str) -> None:
    for name in [name for name in manager.rid_to_state if name.startswith(f"{caller}-")]:
        manager.abort_request(name)


ENGINES: dict[str, Engine] = {
    "vllm": Engine(
        has_failed=_vllm_has_failed,
        abort=_vllm_abort,
        tokenizer_key="engine_kwargs.vllm.tokenizer",
        drafts=DRAFTS,
    ),
    "sglang": Engine(
        has_failed=_sglang_has_failed,
        abort=_sglang_abort,
        tokenizer_key="engine_kwargs.sglang.tokenizer_path",
        settings={"skip_tokenizer_init": False},  # without a tokenizer it finds no stop string
        sampling={"no_stop_trim": True},
        num_spare_tokens=1,
    ),
}
"""By the name in verl's rollout block."""


def engine_of(name: str) -> Engine:
    """Return an engine by its name in verl's rollout block.

    Of an unknown one, which a run without a refiner may have, nothing is asked.
    """
    return ENGINES.get(name, ENGINES["vllm"])
