"""Actors beside the refine workers: a replica and a reward worker."""

import asyncio
from types import SimpleNamespace
from typing import Any

import ray
from transfer_queue import KVBatchMeta


@ray.remote
class Replica:
    """Answers with one letter, at once or when it may."""

    def __init__(self, answer: list[int]) -> None:
        """Answer at once."""
        self._answer, self.waits = answer, False
        self.num_aborted: list[int] = []
        self.waiting: set[str] = set()
        ids = SimpleNamespace(external_req_ids=self.waiting)
        # As vLLM's.
        self.engine = SimpleNamespace(errored=False, output_processor=ids, output_handler=None, abort=self._abort)

    async def _abort(self, ids: list[str]) -> None:
        self.num_aborted.append(len(ids))

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> SimpleNamespace:
        """Answer."""
        self.engine.output_handler = asyncio.current_task()
        self.waiting.add(request_id)
        while self.waits:
            await asyncio.sleep(0.05)
        self.waiting.discard(request_id)
        if "prompt_logprobs" in sampling_params:
            log_probs = [[-0.5] for _ in prompt_ids]
            return SimpleNamespace(token_ids=[0], extra_fields={"prompt_logprobs": log_probs})
        return SimpleNamespace(token_ids=self._answer, extra_fields={})


@ray.remote
class Reward:
    """Prefers refinements, and keeps what it was asked."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self.requests: list[dict[str, Any]] = []

    async def compute_score(self, data: Any) -> dict[str, Any]:
        """Score one response."""
        self.requests.append({name: values[0] for name, values in data.non_tensor_batch.items()})
        return {"reward_score": 1.0}

    async def numbers(self, rows: KVBatchMeta) -> list[dict[str, float | None]]:
        """Return no numbers beside the rewards."""
        return [{} for _ in rows.keys]
