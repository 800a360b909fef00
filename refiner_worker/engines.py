"""Functions on vLLM's engine behind verl's rollout servers. This module needs neither torch nor verl.

Functions on a server run in its process, beside the event loop of its engine.
"""

import asyncio
import multiprocessing
from collections.abc import Mapping
from typing import Any

import numpy as np

Top = tuple[np.ndarray, np.ndarray]
"""The likeliest tokens at each place of a text, ids int32 and log-probs float32, (number of tokens, k) each."""
ABSENT = -1e4
"""The log-prob of an empty place in :data:`Top`: its probability is 0, and 0 times this number is 0."""
ENGINE = "vllm"
"""The replicas' engine, by its name in verl's rollout block."""
SAMPLES = "samples"
"""The field of a server's answer that holds the token ids of all samples (``servers.py``)."""
TOKENIZER_KEY = "engine_kwargs.vllm.tokenizer"
"""The key in verl's rollout block that names another tokenizer than the model's."""


def can_sleep(rollout: Mapping[str, Any]) -> bool:
    """Return whether an engine with verl's block of settings frees its memory while it waits.

    verl's own config does not have ``enable_sleep_mode``: its class adds it, true, when a server starts.
    """
    return bool(rollout["free_cache_engine"] and rollout.get("enable_sleep_mode", True))


def has_failed(server: Any) -> bool:
    """Return whether the engine of a server, one or more processes of its own, is gone while the server answers.

    An engine of vLLM says so itself. An engine of SGLang consists of the processes that its server has started, which
    the first call remembers. Of a replica over several nodes, only the first node's server has vLLM's engine.
    """
    engine = getattr(server, "engine", None)
    if engine is not None or not hasattr(server, "tokenizer_manager"):
        return bool(getattr(engine, "errored", False))
    children = multiprocessing.active_children()  # without those that have ended
    return not all(child.is_alive() for child in server.__dict__.setdefault("_first_children", children))


def abort(server: Any, caller: str) -> None:
    """End the requests on a server whose ids begin with a caller's name."""
    engine = getattr(server, "engine", None)
    if engine is not None and engine.output_handler is not None:  # it has had requests
        asyncio.run_coroutine_threadsafe(_abort(engine, caller), engine.output_handler.get_loop())


async def _abort(engine: Any, caller: str) -> None:
    await engine.abort([name for name in engine.output_processor.external_req_ids if name.startswith(f"{caller}-")])
