"""Stand-ins for Transformer Engine's layers, which use torch's operations and keep the names of its parameters.

mbridge maps Megatron's weights to Hugging Face's by these names (``mbridge/models/qwen2.py``). Megatron's own layers
for machines without Transformer Engine have other names. Only dense models with RMSNorm are supported.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.parallel_state import get_context_parallel_group, get_context_parallel_rank
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from torch import Tensor
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import rms_norm, scaled_dot_product_attention


class Norm(torch.nn.RMSNorm):
    """``TENorm``. Under sequence parallelism Megatron sums the gradient of its weight over the ranks."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        if config.normalization != "RMSNorm" or config.layernorm_zero_centered_gamma:
            raise NotImplementedError("Megatron on the CPU: models with a plain RMSNorm only")
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        setattr(self.weight, "sequence_parallel", config.sequence_parallel)  # noqa: B010


class NormAndLinear(ColumnParallelLinear):
    """``TELayerNormColumnParallelLinear``: parameters ``layer_norm_weight``, ``weight`` and ``bias``."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **settings: Any) -> None:
        super().__init__(input_size, output_size, config=config, **settings)
        self.eps = config.layernorm_epsilon
        self.layer_norm_weight = Norm(config, input_size).weight

    def forward(self, hidden: Tensor, *arguments: Any, **settings: Any) -> Any:
        """Return the output and the bias that is not added yet."""
        normed = rms_norm(hidden, hidden.shape[-1:], self.layer_norm_weight, self.eps)
        return super().forward(normed, *arguments, **settings)


class Attention(torch.nn.Module):
    """``TEDotProductAttention``: causal, of padded, packed, and packed and distributed sequences."""

    def __init__(self, config: Any, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        if config.attention_dropout:
            raise NotImplementedError("Megatron on the CPU: no dropout in the attention")
        self.scale = softmax_scale or 1 / math.sqrt(config.kv_channels)
        self.num_parts = config.context_parallel_size

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, packed_seq_params: Any, **_: Any
    ) -> Tensor:
        """Return (tokens, heads * size) for packed (tokens, heads, size), else (tokens, rows, heads * size).

        Padding is on the right, so that no real token sees it.
        """
        if packed_seq_params is None:
            assert self.num_parts == 1, "rows over several ranks are packed"
            of_rows = (part.permute(1, 2, 0, 3) for part in (query, key, value))
            return self._attend(*of_rows, is_causal=True).permute(2, 0, 1, 3).flatten(2)
        ends = [end // self.num_parts for end in packed_seq_params.cu_seqlens_q.tolist()]
        of_row = self._row if self.num_parts == 1 else self._row_of_all_ranks
        rows = [of_row(*(part[start:end] for part in (query, key, value))) for start, end in pairwise(ends)]
        return torch.cat(rows).flatten(1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **mask: Any) -> Tensor:
        has_groups = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, scale=self.scale, enable_gqa=has_groups, **mask)

    def _row(self, *parts: Tensor, **mask: Any) -> Tensor:
        of_heads = (part.transpose(0, 1)[None] for part in parts)
        return self._attend(*of_heads, **(mask or {"is_causal": True}))[0].transpose(0, 1)

    def _row_of_all_ranks(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend to a sequence of which rank r of n holds the pieces r and 2n - 1 - r ("zigzag")."""
        group, rank, num_ranks = get_context_parallel_group(), get_context_parallel_rank(), self.num_parts
        pieces = [torch.cat(all_gather(part.contiguous(), group=group)).chunk(2 * num_ranks) for part in (key, value)]
        order = [2 * r for r in range(num_ranks)] + [2 * r + 1 for r in reversed(range(num_ranks))]
        keys, values = (torch.cat([of[index] for index in order]) for of in pieces)
        places = torch.arange(len(keys)).chunk(2 * num_ranks)
        own = torch.cat([places[rank], places[-1 - rank]])
        return self._row(query, keys, values, attn_mask=own[:, None] >= torch.arange(len(keys)))


class CpuSpecProvider(LocalSpecProvider):
    """``TESpecProvider``: where Megatron looks up its layers."""

    def fuse_layernorm_and_linear(self) -> bool:
        """Return True, as Transformer Engine does."""
        return True

    def column_parallel_layer_norm_linear(self) -> type:
        """Return the layer before queries, keys and values, and the first of the MLP."""
        return NormAndLinear

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        """Return the norm of queries and keys, and the last of all."""
        return Norm

    def core_attention(self) -> type:
        """Return the attention."""
        return Attention
