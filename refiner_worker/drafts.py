"""Speculative decoding for the refiner alone: what it repeats is drafted by looking it up in its own prompt.

The engine verifies a whole draft in one forward pass and keeps the tokens that it would have sampled itself, so that
refinements stay those of pi_0. The policy's engines are left as they are.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal, get_args

Draft = Literal["ngram", "suffix"]
DRAFTS = get_args(Draft)
SUFFIX_PACKAGE = "arctic_inference"
NUM_DRAFT_TOKENS = 8
"""Of a draft, at most."""
_DRAFTS, _TOKENS = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_per_pos"


def speculative_config(draft: str) -> dict[str, Any]:
    """Return vLLM's ``speculative_config`` (``vllm/config/speculative.py``)."""
    # From the last four tokens if they have occurred, from the last two at least.
    lookup = {"prompt_lookup_max": 4, "prompt_lookup_min": 2} if draft == "ngram" else {}
    return {"method": draft, "num_speculative_tokens": NUM_DRAFT_TOKENS, **lookup}


def add(*counts: Sequence[int]) -> list[int]:
    """Add counts one by one; a shorter list has zeros behind its end."""
    return [sum(parts) for parts in zip_longest(*counts, fillvalue=0)]


def new_counts(server: Any) -> list[int]:
    """Return what a rollout server has drafted since the last call, which runs in the server's process.

    That is the number of drafts and of their tokens, and then how often the first, second, ... token was accepted.
    """
    from vllm.v1.metrics.reader import Counter, Vector, get_metrics_snapshot

    metrics = get_metrics_snapshot()
    counters = [metric for metric in metrics if isinstance(metric, Counter)]
    totals = [sum(counter.value for counter in counters if counter.name == name) for name in (_DRAFTS, _TOKENS)]
    accepted = (metric.values for metric in metrics if isinstance(metric, Vector) and metric.name == _ACCEPTED)
    counts = [*totals, *add(*accepted)]
    before = getattr(server, "refiner_draft_counts", [])
    server.refiner_draft_counts = counts
    return add(counts, [-count for count in before])
