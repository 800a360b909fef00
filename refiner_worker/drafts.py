"""Speculative decoding for the refiner alone: what it repeats is drafted by looking it up in its own prompt.

The engine verifies a whole draft in one forward pass and keeps the tokens that it would have sampled itself, so that
refinements stay those of pi_0. The policy's engines are left as they are.
"""

from typing import Any, Literal

Draft = Literal["ngram"]
NO_COUNTS = [0, 0, 0]
NUM_DRAFT_TOKENS = 8
"""Tokens of a draft, at most."""
_COUNTERS = [f"vllm:spec_decode_num_{name}" for name in ("drafts", "draft_tokens", "accepted_tokens")]


def speculative_config(draft: str) -> dict[str, Any]:
    """Return vLLM's ``speculative_config`` (``vllm/config/speculative.py``)."""
    # From the last four tokens if they have occurred, from the last two at least.
    lookup = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return {"method": draft, "num_speculative_tokens": NUM_DRAFT_TOKENS, **lookup}


def new_counts(server: Any) -> list[int]:
    """Return a rollout server's drafts, their tokens and those accepted since the last call; runs in its process."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    metrics: list[Any] = get_metrics_snapshot()
    counts = [sum(metric.value for metric in metrics if metric.name == name) for name in _COUNTERS]
    before = getattr(server, "refiner_draft_counts", NO_COUNTS)
    server.refiner_draft_counts = counts
    return [now - then for now, then in zip(counts, before, strict=True)]
