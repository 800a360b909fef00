"""Actors beside the refine workers: a replica, a reward worker and a process of agent loops."""

import os
from types import SimpleNamespace
from typing import Any

import ray


@ray.remote
class Replica:
    """Answers with one letter, at once or when it may."""

    def __init__(self, answer: list[int]) -> None:
        """Answer at once."""
        self._answer, self._waits = answer, False
        self._unlikely: int | None = None
        self.last_request: tuple[list[int], int] = ([], 0)
        self.num_aborted: list[int] = []
        ids = SimpleNamespace(external_req_ids=set())
        # As vLLM's.
        self.engine = SimpleNamespace(errored=False, output_processor=ids, output_handler=None, abort=self._abort)

    async def _abort(self, ids: list[str]) -> None:
        self.num_aborted.append(len(ids))

    def request(self) -> tuple[list[int], int]:
        """Return the last prompt, and how many tokens it asked for."""
        return self.last_request

    def aborts(self) -> list[int]:
        """Return how many requests were aborted, each time."""
        return self.num_aborted

    def wait(self, waits: bool) -> None:
        """Answer at once, or not."""
        self._waits = waits

    def would_not_write(self, token: int) -> None:
        """Be sure of all tokens but one."""
        self._unlikely = token

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> SimpleNamespace:
        """Answer."""
        import asyncio

        self.engine.output_handler = asyncio.current_task()
        self.engine.output_processor.external_req_ids.add(request_id)
        while self._waits:
            await asyncio.sleep(0.05)
        if "prompt_logprobs" in sampling_params:
            sure, unsure = (-0.5, -0.5) if self._unlikely is None else (-1e-6, -20.0)
            log_probs = [[unsure if one == self._unlikely else sure] for one in [*prompt_ids[1:], 0]]
            return SimpleNamespace(token_ids=[0], extra_fields={"prompt_logprobs": log_probs})
        self.last_request = (prompt_ids, sampling_params["max_tokens"])
        self.engine.output_processor.external_req_ids.discard(request_id)
        return SimpleNamespace(token_ids=self._answer, extra_fields={})


@ray.remote
class Reward:
    """Prefers refinements, and keeps what it was asked."""

    requests: list[dict[str, Any]]

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self.requests = []

    async def compute_score(self, data: Any) -> dict[str, Any]:
        """Score one response."""
        self.requests.append({name: values[0] for name, values in data.non_tensor_batch.items()})
        return {"reward_score": 1.0}

    def first_request(self) -> dict[str, Any]:
        """Return what was asked first."""
        return self.requests[0]


@ray.remote
class Loop:
    """A process of agent loops, which has begun rollouts."""

    async def pid(self) -> int:
        """Return its process."""
        return os.getpid()
