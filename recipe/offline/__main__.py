"""The command ``online-refiner refine``: answers of a data set refined, as files that others train on.

    online-refiner refine general --model DIR --data FILE.parquet --reward my_reward:compute_score --output DIR

The model answers each row (verl's schema) at temperature 1, or a column `responses` has the answers, a list of texts.
Those below --highest-reward are refined as by ``online-refiner check``, which prints the same numbers for a sample.
With `--refiner placement=external url=http://host:8000/v1` a server refines; with `responses` too, no model is loaded,
and --model only names the tokenizer.

--output gets sft, preference and all (``files.py``), a card, and a journal: after a kill the same command goes on.
"""

import argparse
import asyncio
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from recipe.cpu_platform import prepare_vllm

SETTINGS = (
    "way",
    "model",
    "reward",
    "samples",
    "seed",
    "max_response_tokens",
    "max_new_tokens",
    "max_model_len",
    "dtype",
    "highest_reward",
    "refiner",
)
"""Options that make an answer or a refinement what it is."""


def main() -> None:
    """Refine, and write."""
    parser = argparse.ArgumentParser(
        prog="online-refiner refine",
        usage="%(prog)s WAY --model DIR --data FILE --output DIR [options]",
        description="Refine a data set's answers into files for SFT and preference training.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    parser.add_argument("way", metavar="WAY", help="template or TEMPLATE+CONTEXT, as for check")
    parser.add_argument("--model", required=True, metavar="DIR", help="or hub id")
    parser.add_argument("--data", type=Path, required=True, nargs="+", metavar="FILE", help="parquet, verl's schema")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the same again: it goes on")
    parser.add_argument("--format", nargs="+", default=["sft"], metavar="NAME", help="sft (default), preference, all")
    parser.add_argument("--jsonl", action="store_true", help="JSON lines, not parquet")
    parser.add_argument("--license", metavar="NAME", help="of the data, for the card")
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="answers to each row (default: 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--max-response-tokens", type=int, default=512, metavar="N", help="default: 512")
    parser.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="default: 512")
    parser.add_argument("--max-model-len", type=int, default=2048, metavar="N", help="default: 2048")
    parser.add_argument("--dtype", metavar="TYPE", help="of the weights, as for check")
    parser.add_argument("--highest-reward", type=float, default=1.0, metavar="X", help="not refined (default: 1)")
    parser.add_argument("--reward", default="reward.verl_reward:compute_score", metavar="MODULE:NAME", help="of verl")
    parser.add_argument("--refiner", nargs="+", default=[], metavar="K=V", help="keys of the refiner's block")
    arguments = parser.parse_args()
    log_level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_vllm()
    os.environ["VLLM_LOGGING_LEVEL"] = log_level
    from recipe.offline.run import refine  # after it: this imports verl
    from refiner_worker.client import RunEndedError

    try:
        is_stopped = asyncio.run(refine(arguments, settings_of_run(arguments)))
    except (ValueError, OSError, RunEndedError) as error:  # one line for the user, no traceback
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    if is_stopped:
        print("stopped: the same command goes on", file=sys.stderr)
    raise SystemExit(130 if is_stopped else 0)


def settings_of_run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a run that goes on must have in common with its beginning."""
    data = {}
    for file in arguments.data:
        with file.open("rb") as opened:
            data[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    return {**{name.replace("_", "-"): getattr(arguments, name) for name in SETTINGS}, "data": data}


if __name__ == "__main__":
    main()
