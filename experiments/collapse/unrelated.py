"""The log-loss of the reference model's own answers to prompts that training never asks: what a policy forgets.

    python -m experiments.collapse.unrelated    # prints the reference model's own log-loss; writes the answers if none

The answers are greedy and at most 32 tokens long. They are committed, so every policy is measured on the same tokens.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))  # verl's wheel has a package of that name
from get_smollm2 import chat_model  # noqa: E402

ROOT = Path(__file__).parent
PROMPTS, ANSWERS = ROOT / "prompts.txt", ROOT.parent / "results" / "collapse" / "unrelated.jsonl"
MAX_NEW_TOKENS = 32


def log_loss(folder: Path, answers: list[dict[str, Any]]) -> float:
    """Return the mean negative log-likelihood, in nats a token, that a model gives to answers.

    Args:
        folder: A Hugging Face folder of the model and its tokenizer.
        answers: The `prompt` as text and the `answer` as token ids of each.
    """
    import torch

    model, tokenizer = load(folder)
    total = number = 0.0
    for one in answers:
        prompt = encode(tokenizer, one["prompt"])
        ids = torch.tensor([[*prompt, *one["answer"]]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
        total += torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :], reduction="sum").item()
        number += len(one["answer"])
    return total / number


def load(folder: Path) -> tuple[Any, Any]:
    """Return the model in float32, and the tokenizer, of a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: Any, prompt: str) -> list[int]:
    """Return the token ids of a prompt through the chat template."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def answer(folder: Path) -> list[dict[str, Any]]:
    """Return each prompt of `PROMPTS` with the model's greedy answer as token ids and as text."""
    import torch

    model, tokenizer = load(folder)
    found = []
    for prompt in PROMPTS.read_text(encoding="utf-8").splitlines():
        ids = torch.tensor([encode(tokenizer, prompt)])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        own = out[0, ids.shape[1] :].tolist()
        found.append({"prompt": prompt, "answer": own, "text": tokenizer.decode(own)})
    return found


def read() -> list[dict[str, Any]]:
    """Return the committed answers."""
    return [json.loads(line) for line in ANSWERS.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Write the answers unless they are there, and print the reference model's own log-loss."""
    if not ANSWERS.exists():
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in answer(chat_model()))
        ANSWERS.parent.mkdir(parents=True, exist_ok=True)
        ANSWERS.write_text("".join(lines), encoding="utf-8")
    print(f"{log_loss(chat_model(), read()):.4f}")


if __name__ == "__main__":
    main()
