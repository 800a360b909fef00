"""A Llama of a quarter of a million parameters that decodes with a KV cache.

It computes what ``LlamaForCausalLM`` of transformers computes with the weights of :func:`hugging_face_state`, which a
test holds; this one spends no time on what a batch of forty-token sequences does not need.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HIDDEN, LAYERS, HEADS, INTERMEDIATE, EPSILON, ROPE_BASE = 80, 3, 5, 208, 1e-6, 10_000.0


@dataclass(slots=True)
class Cache:
    """Keys and values of all layers, each (B, heads, longest, head size), and how many places are filled."""

    keys: list[Tensor]
    values: list[Tensor]
    length: int = 0


class Layer(nn.Module):
    """Attention and a gated perceptron, each after a norm and beside a residual path."""

    def __init__(self) -> None:
        """Make the weights."""
        super().__init__()
        self.attention_norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.mlp_norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.gate_up = nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None, index: int) -> Tensor:
        """Return the states (B, T, HIDDEN) after this layer."""
        batch, length, _ = states.shape
        heads = self.qkv(self.attention_norm(states)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(heads[:2], rotation)
        value = heads[2]
        if cache is not None:
            end = cache.length + length
            cache.keys[index][:, :, cache.length : end] = key
            cache.values[index][:, :, cache.length : end] = value
            key, value = cache.keys[index][:, :, :end], cache.values[index][:, :, :end]
        found = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        states = states + self.output(found.transpose(1, 2).reshape(batch, length, HIDDEN))
        gate, up = self.gate_up(self.mlp_norm(states)).chunk(2, -1)
        return states + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """The language model."""

    def __init__(self, vocabulary: int, longest: int) -> None:
        """Make random weights, by torch's global seed, for sequences of at most ``longest`` tokens."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPSILON)
        self.head = nn.Linear(HIDDEN, vocabulary, bias=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.05)
        size = HIDDEN // HEADS
        angles = torch.outer(torch.arange(longest).float(), ROPE_BASE ** (-torch.arange(0, size, 2).float() / size))
        self.register_buffer("cosine", angles.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sine", angles.sin().repeat(1, 2), persistent=False)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits (B, T, vocabulary) of the tokens after ``ids`` (B, T), which follow what the cache has."""
        start = cache.length if cache is not None else 0
        places = slice(start, start + ids.shape[1])
        rotation = self.cosine[places], self.sine[places]  # type: ignore[index]
        states = self.embedding(ids)
        for index, layer in enumerate(self.layers):
            states = layer(states, rotation, cache, index)
        if cache is not None:
            cache.length += ids.shape[1]
            states = states[:, -1:]
        return self.head(self.norm(states))


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries and keys (..., T, head size) turned by their places, as Llama does."""
    cosine, sine = rotation
    first, second = heads.chunk(2, -1)
    return heads * cosine + torch.cat((-second, first), -1) * sine


@torch.no_grad()
def generate(model: Model, prompts: Tensor, longest: int, eos: int, generator: torch.Generator) -> list[list[int]]:
    """Sample an answer to each of B prompts of one length, (B, T), at temperature 1.

    Returns:
        The tokens of each answer up to and with EOS; without it, where ``longest`` tokens have none.
    """
    batch, length = prompts.shape
    shape = (batch, HEADS, length + longest, HIDDEN // HEADS)
    cache = Cache([torch.empty(shape) for _ in range(LAYERS)], [torch.empty(shape) for _ in range(LAYERS)])
    ids, written, is_done = prompts, [], torch.zeros(batch, dtype=torch.bool)
    for _ in range(longest):
        chances = model(ids, cache)[:, -1].softmax(-1)
        ids = torch.multinomial(chances, 1, generator=generator)
        written.append(ids)
        is_done |= ids[:, 0] == eos
        if is_done.all():
            break
    rows = torch.cat(written, 1).tolist()
    return [row[: row.index(eos) + 1] if eos in row else row for row in rows]


def hugging_face_state(model: Model) -> dict[str, Tensor]:
    """Return the weights by the names that ``LlamaForCausalLM`` has for them."""
    state = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        query, key, value = layer.qkv.weight.chunk(3)
        gate, up = layer.gate_up.weight.chunk(2)
        parts = {
            "input_layernorm": layer.attention_norm.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
            "self_attn.q_proj": query,
            "self_attn.k_proj": key,
            "self_attn.v_proj": value,
            "self_attn.o_proj": layer.output.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down.weight,
        }
        state |= {f"model.layers.{index}.{name}.weight": weight for name, weight in parts.items()}
    return {name: weight.detach().clone() for name, weight in state.items()}
