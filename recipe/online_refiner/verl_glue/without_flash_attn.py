"""The ``external_lib`` of models trained on GPUs if flash-attn is missing; it changes two functions of verl.

Without it, verl would load critics with flash attention all the same, and compute the log-probs of packed sequences
token by token.
"""

import torch
from verl.utils import torch_functional

from recipe.cpu_platform.patches import load_critics_by_their_config

NUM_ROWS = 1024
"""The number of tokens computed at a time. More tokens need more memory and are not faster."""


def log_probs_of_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of the labels, as ``verl/utils/torch_functional.py:logprobs_from_logits_v2`` does.

    Reason: verl's function loops over the first dimension. For packed sequences this is the dimension of tokens, and
    each token then costs a GPU several kernels, forward and backward.

    Args:
        logits: A tensor of shape (..., vocabulary).
        labels: Token ids of shape (...).

    Returns:
        The log-probs, of shape (...).
    """
    parts = zip(logits.flatten(0, -2).split(NUM_ROWS), labels.flatten().split(NUM_ROWS), strict=True)
    chosen = [torch.log_softmax(rows, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1) for rows, ids in parts]
    return torch.cat(chosen).view(labels.shape)


load_critics_by_their_config()
torch_functional.logprobs_from_logits_v2 = log_probs_of_labels
