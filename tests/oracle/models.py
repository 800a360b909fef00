"""Tiny random models whose gradients backends are checked for, and pictures for those that see."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tiny_vision import FAMILIES, vision_model, vision_tokenizer
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from recipe.smoke.letters import tiny_llama, tiny_tokenizer

SIZES = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260}
"""Layers for two virtual stages of two pipeline stages; the others for two tensor-parallel ranks."""
INITIALIZER_RANGE = 0.1  # small, so that float32 has digits to spare
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 32}


def llama(tokenizer: Any) -> Any:
    """Return a Llama for a tokenizer."""
    return tiny_llama(tokenizer, **SIZES, initializer_range=INITIALIZER_RANGE)


def qwen3_moe(tokenizer: Any) -> Any:
    """Return a Qwen3 for a tokenizer, whose two layers route each token to two of four experts."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        **{**SIZES, **EXPERTS, "num_hidden_layers": 2},
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


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "llama": (tiny_tokenizer, llama),
    "qwen3_moe": (tiny_tokenizer, qwen3_moe),
    **{family: (vision_tokenizer, partial(vision_model, family)) for family in FAMILIES},
}
"""The functions that return the tokenizer and, for a tokenizer, the model."""


def sees(model: Any) -> bool:
    """Return whether a model takes pictures."""
    return hasattr(model.config, "vision_config")


def picture(model: Any, height: int, width: int, seed: int) -> dict[str, Any]:
    """Return a random picture as a model's processor gives it, its sides in tokens."""
    vision = model.config.vision_config
    grid = torch.tensor([[1, height * vision.spatial_merge_size, width * vision.spatial_merge_size]])
    generator = torch.Generator().manual_seed(seed)
    num_numbers = 3 * vision.temporal_patch_size * vision.patch_size**2  # three colours
    return {"pixel_values": torch.randn(int(grid.prod()), num_numbers, generator=generator), "image_grid_thw": grid}


def tokens_of(model: Any, pictures: dict[str, Any]) -> list[int]:
    """Return the tokens of pictures in a prompt."""
    config, ids = model.config, []
    for grid in pictures.get("image_grid_thw", []):
        num_tokens = int(grid.prod()) // config.vision_config.spatial_merge_size**2
        places = [config.image_token_id] * num_tokens
        ids += [config.vision_start_token_id, *places, config.vision_end_token_id]
    return ids


def kinds_of(model: Any, ids: list[int]) -> dict[str, Any]:
    """Return whether each token is text (0) or of a picture (1), as models that see take it."""
    return {"mm_token_type_ids": (torch.tensor([ids]) == model.config.image_token_id).long()} if sees(model) else {}


def positions_of(model: Any, ids: list[int], pictures: dict[str, Any]) -> torch.Tensor:
    """Return the positions of a row as verl has them: (tokens,), or (4, tokens) by the model's own M-RoPE."""
    counted = torch.arange(len(ids))
    if not sees(model):
        return counted
    row = torch.tensor([ids])
    grids = {"image_grid_thw": pictures.get("image_grid_thw"), **kinds_of(model, ids)}
    seen, _ = model.model.get_rope_index(input_ids=row, attention_mask=torch.ones_like(row), **grids)
    return torch.cat([counted[None], seen[:, 0]])
