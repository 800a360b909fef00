"""How large a model is, from its Hugging Face config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KNOWN = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "olmo2",
    "phi3",
    "granite",
)
"""Model types whose number of parameters :class:`Shape` computes with an error of at most a thousandth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder: attention (grouped queries, or latent as DeepSeek's) and a gated MLP, or experts, in each layer."""

    is_known: bool
    """Whether the model's family is in ``KNOWN``; otherwise the sizes are a guess, and no run is refused by them."""
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp: int
    """Hidden units of the MLP that a token passes in a layer, summed over the experts that it is sent to."""
    vocab: int
    max_positions: int
    embeddings: int
    """Parameters of the embedding, and of the head where that is not tied to it."""
    attention: int
    """Parameters of a layer's attention and norms."""
    dense: int
    """Parameters of all MLPs that every token passes: shared experts and routers too."""
    experts: int
    """Parameters of all experts."""
    kv_values: int
    """Numbers that the KV cache holds for a token and layer."""
    vision: int = 0
    """Parameters of the vision part, as Qwen2.5-VL and Qwen3-VL have them; a guess for other models."""

    @property
    def num_parameters(self) -> int:
        """The number of parameters of the whole model."""
        return self.embeddings + self.num_layers * self.attention + self.dense + self.experts + self.vision

    @property
    def num_active(self) -> int:
        """The number of parameters that a token passes: of a layer's experts, those that the token is sent to."""
        return self.embeddings + self.num_layers * (self.attention + 3 * self.hidden * self.mlp)

    @property
    def block(self) -> int:
        """Parameters of a layer, which FSDP gathers at once."""
        return (self.num_parameters - self.embeddings - self.vision) // self.num_layers

    def kv_bytes(self, tensor_parallel: int = 1, pipeline_parallel: int = 1, num_bytes: int = 2) -> float:
        """Return the bytes of KV cache of one token on one GPU; heads are not cut, nor is a latent."""
        shares = 1 if self.num_kv_heads == 1 else min(tensor_parallel, self.num_kv_heads)
        return self.kv_values / shares * self.num_layers / pipeline_parallel * num_bytes


def read(config: Mapping[str, Any]) -> Shape | None:
    """Return the shape of a model with this config; None if the config does not state it."""
    model: Mapping[str, Any] = {**config, **(config.get("text_config") or {})}
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
    if any(not isinstance(model.get(name), int) for name in names):
        return None
    num_layers, hidden, heads, vocab, mlp = (model[name] for name in names)
    kv_heads = model.get("num_key_value_heads") or heads
    head_dim = model.get("head_dim") or hidden // heads
    attention, kv_values = _attention(model, hidden, heads, kv_heads, head_dim)
    experts = model.get("num_local_experts") or model.get("n_routed_experts") or model.get("num_experts") or 0
    own = model.get("moe_intermediate_size") or mlp
    num_sparse = _num_sparse(model, num_layers) if experts else 0
    dense = (num_layers - num_sparse) * 3 * hidden * mlp + num_sparse * experts * hidden
    shared = model.get("shared_expert_intermediate_size") or own * (model.get("n_shared_experts") or 0)
    dense += num_sparse * 3 * hidden * shared
    chosen = model.get("num_experts_per_tok") or 0
    return Shape(
        is_known=model.get("model_type") in KNOWN and not _slides(model),
        num_layers=num_layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=1 if "kv_lora_rank" in model else kv_heads,
        head_dim=head_dim,
        mlp=(own * chosen + shared) if experts else mlp,
        vocab=vocab,
        max_positions=model.get("max_position_embeddings") or 0,
        embeddings=vocab * hidden * (1 if model.get("tie_word_embeddings") else 2) + hidden,
        attention=attention,
        dense=dense,
        experts=num_sparse * experts * 3 * hidden * own,
        kv_values=kv_values,
        vision=_vision(config.get("vision_config") or {}),
    )


def _vision(model: Mapping[str, Any]) -> int:
    """Return the parameters of the part that reads images, except biases and norms; 0 if its sizes are not stated."""
    names = ("depth", "hidden_size", "intermediate_size", "patch_size")
    if any(not isinstance(model.get(name), int) for name in names):
        return 0
    depth, hidden, mlp, patch = (model[name] for name in names)
    matrices = 3 if "fullatt_block_indexes" in model else 2  # of an MLP: only that of Qwen2.5-VL is gated
    inputs = 3 * (model.get("temporal_patch_size") or 1) * patch**2 + (model.get("num_position_embeddings") or 0)
    merged = hidden * (model.get("spatial_merge_size") or 1) ** 2
    num_mergers = 1 + len(model.get("deepstack_visual_indexes") or ())
    mergers = num_mergers * merged * (merged + (model.get("out_hidden_size") or hidden))
    return int(inputs * hidden + depth * (4 * hidden**2 + matrices * hidden * mlp) + mergers)


def _attention(model: Mapping[str, Any], hidden: int, heads: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
    """Return a layer's parameters of attention and norms, and its KV numbers for a token."""
    if "kv_lora_rank" in model:  # DeepSeek's latent attention
        latent, rope, nope, value = (
            model[key] for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
        rank = model.get("q_lora_rank")
        queries = rank * (hidden + heads * (nope + rope) + 1) if rank else hidden * heads * (nope + rope)
        keys = hidden * (latent + rope) + latent + latent * heads * (nope + value)
        return queries + keys + heads * value * hidden + 2 * hidden, latent + rope
    width = (heads + 2 * kv_heads) * head_dim
    bias = width if model.get("attention_bias") or model.get("model_type") in ("qwen2", "qwen2_moe") else 0
    norms = 2 * hidden + (2 * head_dim if str(model.get("model_type")).startswith("qwen3") else 0)
    return hidden * width + bias + heads * head_dim * hidden + norms, 2 * kv_heads * head_dim


def _slides(model: Mapping[str, Any]) -> bool:
    """Return whether some layers attend within a window only, or not at all, so that their cache is smaller."""
    has_window = model.get("sliding_window") and model.get("use_sliding_window", True)
    return bool(has_window or {"linear_attention", "sliding_attention"} & set(model.get("layer_types") or ()))


def _num_sparse(model: Mapping[str, Any], num_layers: int) -> int:
    """Return how many layers have experts."""
    every, dense = model.get("decoder_sparse_step") or 1, set(model.get("mlp_only_layers") or ())
    first = model.get("first_k_dense_replace") or 0
    return sum(index >= first and (index + 1) % every == 0 and index not in dense for index in range(num_layers))
