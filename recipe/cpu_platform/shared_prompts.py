"""Responses to one prompt in one sequence behind it: the prompt is computed once, not once for each of its responses.

A group of rollouts is as many copies of a prompt. Attention lets a response see the prompt and itself, and its
positions are those that it has alone, so hidden states and gradients are those of separate rows, up to rounding.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FULL_ATTENTION = ("llama", "mistral", "qwen2", "qwen3")
"""Types of models whose tokens meet in attention alone, and there through the mask that they are given."""


@dataclass(slots=True, frozen=True)
class Packed:
    """Groups of responses, each behind their prompt, padded to the longest of G groups, L tokens."""

    input_ids: Tensor
    """(G, L)"""
    position_ids: Tensor
    """(G, L), of a response as if it were alone."""
    attention_mask: Tensor
    """(G, 1, L, L) bool: what each token (third) may see (last)."""
    positions: tuple[Tensor, Tensor]
    """Group, and place in it, of each position that predicts a response token, row after row, each (N,)."""


def understands(config: Any) -> bool:
    """Tell whether a Hugging Face model computes what a mask says, in every layer."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    is_full = layers == {"full_attention"} and window is None
    return config.model_type in FULL_ATTENTION and is_full and config._attn_implementation == "sdpa"


def pack(rows: list[Tensor], num_response: list[int], hidden_size: int) -> Packed | None:
    """Lay responses to the same prompt behind it; None where that is no less work than a row for each.

    Args:
        rows: B sequences of token ids, prompt and response.
        num_response: Lengths of the responses; each leaves at least one token of prompt.
        hidden_size: Of the model: attention grows with the square of a row's length, all else with the length.
    """
    prompts: dict[tuple[int, ...], list[int]] = {}
    for index, (row, number) in enumerate(zip(rows, num_response, strict=True)):
        prompts.setdefault(tuple(row[: len(row) - number].tolist()), []).append(index)
    lengths = [len(prompt) + sum(num_response[one] for one in members) for prompt, members in prompts.items()]
    longest = max(lengths)
    if _work(len(prompts), longest, hidden_size) >= _work(len(rows), max(map(len, rows)), hidden_size):
        return None

    input_ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    position_ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    owner = torch.full((len(prompts), longest), -1)  # 0: the prompt, n: its n-th response
    places: list[Tensor] = [torch.empty(0)] * len(rows)
    groups = torch.zeros(len(rows), dtype=torch.long)
    for group, (prompt, members) in enumerate(prompts.items()):
        start = len(prompt)
        input_ids[group, :start], owner[group, :start] = rows[members[0]][:start], 0
        position_ids[group, :start] = torch.arange(start)
        for number, index in enumerate(members, start=1):
            end = start + num_response[index]
            input_ids[group, start:end], owner[group, start:end] = rows[index][len(prompt) :], number
            position_ids[group, start:end] = torch.arange(len(prompt), len(rows[index]))
            places[index] = torch.arange(start - 1, end - 1)
            places[index][:1] = len(prompt) - 1
            groups[index], start = group, end
    is_own = (owner[:, :, None] == owner[:, None, :]) | (owner[:, None, :] == 0)
    mask = (is_own & torch.ones(longest, longest, dtype=torch.bool).tril())[:, None]
    positions = groups.repeat_interleave(torch.tensor(num_response)), torch.cat(places)
    return Packed(input_ids=input_ids, position_ids=position_ids, attention_mask=mask, positions=positions)


def _work(num_rows: int, length: int, hidden_size: int) -> int:
    """Return the arithmetic of a layer, up to a factor: 24 h^2 a token in matrices, 4 h L in attention."""
    return num_rows * length * (6 * hidden_size + length)
