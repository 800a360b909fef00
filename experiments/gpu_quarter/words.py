"""A model of random weights that writes words, and a task for it: for time and memory no download is needed.

``python -m experiments.gpu_quarter.words FOLDER SHAPE PROMPT_WORDS REFINEMENT_WORDS`` writes both.
"""

import json
import sys
from pathlib import Path
from typing import Any

TEMPLATE = """{%- set stop = "end" -%}
{{ reward }} {{ response }} {{ question }}
"""
SHAPES: dict[str, dict[str, int]] = {
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 1_000,
    },
}
"""A Llama of Qwen2.5-1.5B's sizes but for the head, which is not tied to the embedding: a tied one repeats its last
word. And a small one for a rehearsal."""


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """Return the share of words whose number is even, as verl asks for a reward."""
    words = solution_str.split()
    return sum(word[-1:] in "02468" for word in words) / max(len(words), 1)


def words(number: int, end_every: int) -> list[str]:
    """Return ``number`` words, of which one in ``end_every`` ends a refinement: no random model ends its turn."""
    return [f"end{index}" if index % end_every == 0 else f"w{index}" for index in range(number)]


def save(folder: Path, shape: str, *, num_prompts: int, prompt_words: int, refinement_words: int) -> None:
    """Write ``model/``, ``prompts.parquet`` and ``words.jinja`` into a folder.

    Args:
        folder: An existing folder.
        shape: A name in ``SHAPES``.
        num_prompts: The number of rows.
        prompt_words: The number of words in each prompt.
        refinement_words: The mean number of words in a refinement without a limit; lengths are geometric.
    """
    import pandas
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>"]
    vocabulary = [*special, *words(SHAPES[shape]["vocab_size"] - len(special), refinement_words)]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(vocabulary)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", eos_token="<|im_end|>"
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
        "{% if add_generation_prompt %}<|im_start|> {% endif %}"
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = LlamaConfig(
            **SHAPES[shape],
            max_position_embeddings=32768,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "words.jinja").write_text(TEMPLATE)
    text = " ".join(vocabulary[len(special) + 1 :][:prompt_words])
    rows = [
        {
            "data_source": "words",
            "prompt": [{"role": "user", "content": f"w{index} {text}"}],
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index},
        }
        for index in range(1, num_prompts + 1)
    ]
    pandas.DataFrame(rows).to_parquet(folder / "prompts.parquet")
    (folder / "made.json").write_text(json.dumps({"parameters": sum(one.numel() for one in model.parameters())}))


if __name__ == "__main__":
    save(
        Path(sys.argv[1]), sys.argv[2], num_prompts=64, prompt_words=int(sys.argv[3]), refinement_words=int(sys.argv[4])
    )
