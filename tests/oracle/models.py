"""Tiny random models whose gradients backends are checked for."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from recipe.smoke.letters import tiny_llama

SIZES = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260}
"""Layers for two virtual stages of two pipeline stages; the others for two tensor-parallel ranks."""
INITIALIZER_RANGE = 0.1  # small, so that float32 has digits to spare
EXPERTS = {
    "num_hidden_layers": 2,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "moe_intermediate_size": 32,
}


def llama(tokenizer: Any) -> Any:
    """Return a Llama for a tokenizer."""
    return tiny_llama(tokenizer, **SIZES, initializer_range=INITIALIZER_RANGE)


def qwen3_moe(tokenizer: Any) -> Any:
    """Return a Qwen3 for a tokenizer, whose layers route each token to two of four experts."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **{**SIZES, **EXPERTS},
        hidden_size=64,
        intermediate_size=128,
        head_dim=16,
        initializer_range=INITIALIZER_RANGE,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3MoeForCausalLM(config)


MODELS: dict[str, Callable[[Any], Any]] = {"llama": llama, "qwen3_moe": qwen3_moe}
