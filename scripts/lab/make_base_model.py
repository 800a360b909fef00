"""Make the lab's base model: a small Llama that solves a part of the lab's problems and can refine its own answers.

    python scripts/lab/make_base_model.py [--output DIR] [--examples 24000]

Writes a Hugging Face folder, the lab's problems in verl's schema (`train.parquet`, `val.parquet`: held out) and
`rates.json`, which is also printed: how often the model solves problems, what it does to answers as their refiner, and
`is_real`: whether that is neither too good nor too bad for an experiment (`recipe/lab/rates.py`); if not, take another
seed.
"""

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path

import torch
from datasets import Dataset

from recipe.lab.base_model import Corpus, make_model, train
from recipe.lab.problems import lab_problems
from recipe.lab.rates import measure
from refiner_worker.config import TEMPLATES


def main() -> None:
    """Train, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/lab/base"))
    parser.add_argument("--examples", type=int, default=24_000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--feedback", type=float, default=0.8, help="share of refiner's examples that show feedback")
    arguments = parser.parse_args()
    problems = lab_problems(arguments.seed)
    torch.manual_seed(arguments.seed)
    template = TEMPLATES / "apps.jinja"
    corpus = Corpus(problems.train, template, random.Random(arguments.seed), arguments.feedback)
    model = make_model(corpus.tokenizer, hidden_size=arguments.hidden_size, num_layers=arguments.layers)
    train(
        corpus,
        model,
        arguments.output,
        num_examples=arguments.examples,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
    )
    for name, split in (("train", problems.train), ("val", problems.held_out)):
        rows = [problem.to_verl_row(index) for index, problem in enumerate(split)]
        Dataset.from_list(rows).to_parquet(str(arguments.output / f"{name}.parquet"))
    train_rates, held_out = (
        measure(model, corpus.tokenizer, split, template, num_answers)
        for split, num_answers in ((problems.train, 1), (problems.held_out, 8))
    )
    rates = {"num_parameters": model.num_parameters(), "train": asdict(train_rates), "held_out": asdict(held_out)}
    rates["is_real"] = held_out.is_real
    (arguments.output / "rates.json").write_text(json.dumps(rates, indent=1))
    print(json.dumps(rates, indent=1))


if __name__ == "__main__":
    main()
