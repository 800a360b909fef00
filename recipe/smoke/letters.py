"""A tiny random Llama, and a task that a CPU trains in seconds: small letters are rewarded."""

from pathlib import Path
from typing import Any

NUM_PROMPTS = 16
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """Return the share of small letters, as verl asks for a reward."""
    return sum(letter.islower() for letter in solution_str) / max(len(solution_str), 1)


def save_prompts(file: Path) -> Path:
    """Write prompts in verl's parquet layout, and return the file."""
    import pandas

    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"Write {n} letters."}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": n},
        }
        for n in range(NUM_PROMPTS)
    ]
    pandas.DataFrame(rows).to_parquet(file)
    return file


def save_llama(folder: Path, **sizes: int) -> Path:
    """Save a Llama that writes letters, with its tokenizer, and return the folder."""
    tokenizer = tiny_tokenizer()
    model = tiny_llama(tokenizer, **sizes)
    write_bigrams(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer() -> Any:
    """Return a tokenizer of single bytes, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(special + alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=special
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_llama(tokenizer: Any, **sizes: float) -> Any:
    """Return a model for a tokenizer: two layers, one key head for two query heads, unless ``sizes`` says otherwise."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3}
    defaults = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": len(tokenizer)}
    config = LlamaConfig(
        **{**heads, **defaults, **sizes},
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def write_bigrams(model: Any, tokenizer: Any) -> None:
    """Make a Llama, or a model built like it, write a, b, c, d, z and stop, some letters in capitals.

    A response so has an end and a reward.

    Embeddings of the letters are orthogonal unit vectors, so a row of the LM head holds the logits of its token after
    each letter, divided by what the final RMSNorm multiplies with: the root of the number of dimensions.
    """
    import torch

    letters = [tokenizer.convert_tokens_to_ids(token) for token in ("Ċ", *"abcdz", *"ABCDZ")]
    start, lower, upper = letters[0], letters[1:6], letters[6:]
    with torch.no_grad():
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        logit = embedding.shape[1] ** -0.5
        embedding[:, : len(letters)] = 0
        embedding /= embedding.norm(dim=1, keepdim=True).clamp(min=1e-6)  # the padding token has none
        embedding[letters] = torch.eye(embedding.shape[1])[: len(letters)]
        head *= 0.01
        for layer in model.model.layers:
            for part in (layer.self_attn.v_proj, layer.self_attn.o_proj, layer.mlp.up_proj, layer.mlp.down_proj):
                part.weight *= 1e-2  # small outputs and small gradients: what is learned stays in the LM head
        following = {start: 0, **{letter: rank % 5 + 1 for rank, letter in enumerate(letters[1:])}}
        for column, letter in enumerate(letters):
            if letter in (lower[4], upper[4]):
                head[tokenizer.eos_token_id, column] = 12 * logit
            else:
                head[lower[following[letter]], column] = 10 * logit
                head[upper[following[letter]], column] = 9.6 * logit
                head[lower[4], column] += 8 * logit if following[letter] < 4 else 0
