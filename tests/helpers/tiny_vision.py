"""Tiny models that see, with their processors, for the tests of pictures: ``FOLDER FAMILY`` saves one.

They need the packages of ``requirements/images.txt``, which ``scripts/test.sh`` installs into a folder of their own.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from recipe.smoke.letters import write_bigrams

PACKAGES = Path(__file__).parents[2] / ".venv" / "images"
"""The folder with those packages. Where it is not on the path, models read text as if they were not there."""
FAMILIES = ("qwen2_5_vl", "qwen3_vl")
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}
PIXELS = {"min_pixels": 28 * 28, "max_pixels": 112 * 112}
"""The sizes of a picture between which the processor resizes: 1 to 16 tokens of Qwen2.5-VL."""


def vision_tokenizer() -> Any:
    """Return a tokenizer of single bytes, with the tokens of pictures and a chat template that writes them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def vision_model(family: str, tokenizer: Any) -> Any:
    """Return a random model: two layers for text, two for vision."""
    import torch
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
    )

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    common = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }
    text = {
        **TEXT,
        "vocab_size": len(tokenizer),
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    shared = {"spatial_merge_size": 2, "temporal_patch_size": 2}
    torch.manual_seed(0)
    if family == "qwen2_5_vl":
        text |= {"rope_parameters": ROPE}
        vision |= {**shared, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [1]}
        config: Any = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **common)
        return Qwen2_5_VLForConditionalGeneration(config)
    # vLLM on a CPU asks for the text model's architecture, which transformers does not write.
    text |= {"head_dim": 32, "architectures": ["Qwen3ForCausalLM"]}
    text |= {"rope_parameters": {**ROPE, "mrope_interleaved": True}}
    vision |= {**shared, "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **common))


def save_vision_model(folder: Path, family: str = "qwen3_vl") -> Path:
    """Save such a model, which writes letters, with its tokenizer and processor, and return the folder."""
    from transformers import (
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    tokenizer = vision_tokenizer()
    model = vision_model(family, tokenizer)
    write_bigrams(SimpleNamespace(model=model.model.language_model, lm_head=model.lm_head), tokenizer)
    model.save_pretrained(folder)
    patches = {"patch_size": model.config.vision_config.patch_size, "merge_size": 2, "temporal_patch_size": 2}
    images = Qwen2VLImageProcessor(**patches, **PIXELS)
    kinds = {
        "qwen2_5_vl": (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor),
        "qwen3_vl": (Qwen3VLProcessor, Qwen3VLVideoProcessor),
    }
    make, videos = kinds[family]
    make(images, tokenizer, videos(**patches), chat_template=CHAT_TEMPLATE).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    save_vision_model(Path(sys.argv[1]), sys.argv[2])
