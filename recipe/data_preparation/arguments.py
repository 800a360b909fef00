"""Options that the sources of ``scripts/prepare_data.py`` share, and the screen that they ask for."""

import argparse

from recipe.data_preparation.rows import Screen
from recipe.data_preparation.sources import read_records


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of everything that is read from somewhere."""
    parser.add_argument("source", help="hub id, file (json, jsonl, parquet), folder of such, or of APPS problems")
    add_reading_arguments(parser)


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of how records become rows."""
    parser.add_argument("--split", default="train", help="split of a hub data set (default: train)")
    parser.add_argument("--config", help="configuration of a hub data set that has several")
    parser.add_argument("--name", help="data_source of the rows (default: the subcommand)")
    parser.add_argument("--val-fraction", type=float, default=0.05, help="share of rows in val.parquet")
    parser.add_argument("--tokenizer", help="model whose chat template counts the tokens of a prompt")
    parser.add_argument("--max-prompt-tokens", type=int, help="longer prompts are dropped; needs --tokenizer")
    parser.add_argument(
        "--benchmarks", nargs="*", default=[], metavar="SOURCE", help="evaluation problems that must not be trained on"
    )


def screen_of(arguments: argparse.Namespace) -> Screen:
    """Build the screen that the options ask for.

    Raises:
        ValueError: options that do not go together.
    """
    if not 0 <= arguments.val_fraction < 1:
        raise ValueError(f"--val-fraction {arguments.val_fraction}: give 0 or more and less than 1")
    if arguments.max_prompt_tokens is not None and not arguments.tokenizer:
        raise ValueError("--max-prompt-tokens needs --tokenizer MODEL, whose tokens are meant")
    tokenizer = None
    if arguments.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    benchmarks = (
        str(record.get("question") or record.get("problem") or record.get("prompt") or record.get("text") or "")
        for source in arguments.benchmarks
        for record in read_records(source, "test")
    )
    return Screen(filter(None, benchmarks), tokenizer, arguments.max_prompt_tokens)
