"""What verl's workers change where flash-attn is missing: the ``external_lib`` of models trained on GPUs.

verl then loads critics with flash attention all the same, and computes log-probs of packed sequences token by token.
"""

import torch
from verl.utils import torch_functional

from recipe.cpu_platform.patches import load_critics_by_their_config

NUM_ROWS = 1024
"""Tokens at a time. More rows need more memory for no gain."""


def log_probs_of_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return log-probs of the labels, of their shape, as ``verl/utils/torch_functional.py:logprobs_from_logits_v2``.

    Reason: that loops over the first dimension. Of packed sequences these are tokens, and each costs a GPU several
    kernels, forwards and backwards.

    Args:
        logits: (..., vocabulary).
        labels: (...), token ids.
    """
    parts = zip(logits.flatten(0, -2).split(NUM_ROWS), labels.flatten().split(NUM_ROWS), strict=True)
    chosen = [torch.log_softmax(rows, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1) for rows, ids in parts]
    return torch.cat(chosen).view(labels.shape)


load_critics_by_their_config()
torch_functional.logprobs_from_logits_v2 = log_probs_of_labels
