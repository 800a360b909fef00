"""Train a small reward model from preference pairs.

    python scripts/train_reward_model.py --model MODEL --pairs PAIRS --output DIR

PAIRS is a json, jsonl or parquet file (also compressed) or a hub id whose records have `chosen` and `rejected`:
messages (role and content), or a text of turns that begin with "Human:" and "Assistant:". The model gets a scalar head
and is trained with the pairwise loss -log sigmoid(r(chosen) - r(rejected)) (Bradley-Terry); the first pairs are held
out, and the share of them that the model ranks right is printed. DIR is a folder for reward.reward_model.model_path.
"""

import argparse
import json
import re
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from recipe.data_preparation.sources import read_records

TURN = re.compile(r"\n\n(Human|Assistant): ")
Pair = tuple[list[int], ...]
ROLES = {"Human": "user", "Assistant": "assistant"}


def messages_of(value: Any) -> list[dict[str, str]]:
    """Return a dialogue as messages."""
    if not isinstance(value, str):
        return list(value)
    parts = TURN.split(value)[1:]
    return [{"role": ROLES[who], "content": text.strip()} for who, text in zip(parts[::2], parts[1::2], strict=True)]


class PairTrainer(Trainer):
    """A trainer whose batches are n chosen rows followed by their n rejected ones."""

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any) -> Any:
        """Return the Bradley-Terry loss, mean over pairs."""
        outputs = model(**inputs)
        chosen, rejected = outputs.logits[:, 0].chunk(2)
        loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
        return (loss, outputs) if return_outputs else loss


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small reward model from preference pairs.")
    parser.add_argument("--model", required=True, help="causal language model to start from")
    parser.add_argument("--pairs", required=True, help="file or hub id")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num-pairs", type=int, default=2000, help="pairs to use at most (default: 2000)")
    parser.add_argument("--num-held-out", type=int, default=100)
    parser.add_argument("--max-length", type=int, default=256, help="pairs with a longer dialogue are left out")
    parser.add_argument("--batch-size", type=int, default=8, help="pairs per step")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument(
        "--num-trained-layers", type=int, help="train the last layers and the head only: cheaper (default: all)"
    )
    return parser.parse_args()


def encode_pairs(arguments: argparse.Namespace, tokenizer: Any) -> list[Pair]:
    """Return the token ids of the pairs that differ and are not too long.

    Raises:
        ValueError: no chat template, or too few pairs.
    """
    if not tokenizer.chat_template:
        raise ValueError(f"--model {arguments.model}: its tokenizer has no chat template")

    def encode(record: dict[str, Any]) -> Pair:
        return tuple(
            tokenizer.apply_chat_template(messages_of(record[side]), return_dict=True)["input_ids"]
            for side in ("chosen", "rejected")
        )

    pairs = map(encode, read_records(arguments.pairs, "train"))
    fitting = (pair for pair in pairs if max(map(len, pair)) <= arguments.max_length and pair[0] != pair[1])
    found = list(islice(fitting, arguments.num_pairs))
    if len(found) <= arguments.num_held_out:
        raise ValueError(f"--pairs {arguments.pairs}: only {len(found)} usable pairs; lower --num-held-out")
    return found


def freeze(model: Any, num_trained_layers: int) -> None:
    """Leave the last layers, the final norm and the head to be trained; frozen layers need no backward pass."""
    model.base_model.embed_tokens.requires_grad_(False)
    layers = model.base_model.layers
    for layer in layers[: len(layers) - num_trained_layers]:
        layer.requires_grad_(False)


def main() -> int:
    """Train, report the held-out accuracy, save; exit status 2 if the options or the data are wrong."""
    arguments = parse_arguments()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    try:
        pairs = encode_pairs(arguments, tokenizer)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    held_out, training = pairs[: arguments.num_held_out], pairs[arguments.num_held_out :]

    def collate(batch: list[Pair]) -> dict[str, Tensor]:
        rows = [{"input_ids": pair[side]} for side in (0, 1) for pair in batch]
        return dict(tokenizer.pad(rows, padding=True, return_tensors="pt"))

    options = TrainingArguments(
        output_dir=str(arguments.output),
        per_device_train_batch_size=arguments.batch_size,
        num_train_epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        lr_scheduler_type="cosine",
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
    )
    model = AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=1, dtype=torch.float32)
    if arguments.num_trained_layers is not None:
        freeze(model, arguments.num_trained_layers)
    trainer = PairTrainer(model=model, args=options, train_dataset=training, data_collator=collate)
    before = accuracy(trainer, held_out, collate)
    trainer.train()
    after = accuracy(trainer, held_out, collate)
    trainer.save_model(str(arguments.output))
    tokenizer.save_pretrained(arguments.output)
    report = {"num_pairs": len(training), "num_held_out": len(held_out), "accuracy_before": before, "accuracy": after}
    print(json.dumps(report))
    return 0


@torch.no_grad()
def accuracy(trainer: PairTrainer, pairs: list[Pair], collate: Any) -> float:
    """Return the share of pairs whose chosen dialogue has the higher reward."""
    right = 0
    model = trainer.model.eval()
    for start in range(0, len(pairs), 8):
        inputs = {name: tensor.to(model.device) for name, tensor in collate(pairs[start : start + 8]).items()}
        chosen, rejected = model(**inputs).logits[:, 0].chunk(2)
        right += int((chosen > rejected).sum())
    return right / max(1, len(pairs))


if __name__ == "__main__":
    sys.exit(main())
