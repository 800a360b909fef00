"""Speculative decoding for the refiner alone: what it repeats is drafted by looking it up in its own prompt.

The engine verifies a whole draft in one forward pass and keeps the tokens that it would have sampled itself, so that
refinements stay those of pi_0. The policy's engines are left as they are.
"""

from typing import Any, Literal, get_args

Draft = Literal["ngram", "suffix"]
DRAFTS = get_args(Draft)
SUFFIX_PACKAGE = "arctic_inference"
_DRAFTED, _ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"


def speculative_config(draft: str, num_draft_tokens: int) -> dict[str, Any]:
    """Return vLLM's ``speculative_config`` (``vllm/config/speculative.py``)."""
    if draft == "ngram":
        # From the last four tokens if they have occurred, from the last two at least.
        lookup = {"prompt_lookup_max": 4, "prompt_lookup_min": 2}
        return {"method": draft, "num_speculative_tokens": num_draft_tokens, **lookup}
    return {"method": draft, "num_speculative_tokens": num_draft_tokens}


def new_counts(server: Any) -> tuple[int, int]:
    """Return the tokens drafted and accepted in a rollout server's process since the last call, which runs in it."""
    from vllm.v1.metrics.reader import Counter, get_metrics_snapshot

    counters = [metric for metric in get_metrics_snapshot() if isinstance(metric, Counter)]
    drafted, accepted = (
        sum(counter.value for counter in counters if counter.name == name) for name in (_DRAFTED, _ACCEPTED)
    )
    before = getattr(server, "refiner_draft_counts", (0, 0))
    server.refiner_draft_counts = drafted, accepted
    return drafted - before[0], accepted - before[1]
