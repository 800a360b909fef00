"""The commands ``online-refiner check`` and ``online-refiner refine``: answers of a data set, refined without a run.

    online-refiner check general math --model DIR --data FILE.parquet --reward my_reward:compute_score
    online-refiner refine general --model DIR --data FILE.parquet --reward my_reward:compute_score --output DIR

Each variant of the refiner is named by a template (a name, or a file of your own), words of `refiner.context` and other
keys of the block `refiner`, joined by `+`: `general+feedback+reject_leaks=false`. Answers are drawn at temperature 1,
refinements greedily, as in training. See ``docs/refine.md`` for both commands, and ``docs/refiner.md`` for the printed
table.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from recipe.cpu_platform import prepare_vllm


def check() -> None:
    """Compare variants of the refiner before a run."""
    parser = parser_of("check", "Before a run: can a model refine its own answers, and with which template?")
    parser.set_defaults(goes_on=False, problems=24, output=Path("check_refiner"), jsonl=True)
    run(parser.parse_args())


def refine() -> None:
    """Refine a data set."""
    parser = parser_of("refine", "Refine a data set's answers into files for SFT and preference training.")
    parser.set_defaults(goes_on=True)
    run(parser.parse_args())


def parser_of(command: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of the options that both commands share."""
    parser = argparse.ArgumentParser(
        prog=f"online-refiner {command}",
        usage="%(prog)s WAY... --model DIR --data FILE... [options]",
        description=description,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    add = parser.add_argument
    add("ways", nargs="+", metavar="WAY", help="template, or TEMPLATE+CONTEXT, as general+feedback")
    add("--model", required=True, metavar="DIR", help="or hub id")
    add("--data", type=Path, required=True, nargs="+", metavar="FILE", help="parquet, verl's schema")
    add("--output", type=Path, default=Path("refined"), metavar="DIR", help="default: %(default)s")
    add("--problems", type=int, default=0, metavar="N", help="rows of the data; 0: all (default: %(default)s)")
    add("--samples", type=int, default=4, metavar="N", help="answers to each problem (default: 4)")
    add("--seed", type=int, default=0, metavar="N", help="of problems and answers")
    add("--max-response-tokens", type=int, default=512, metavar="N", help="default: 512")
    add("--max-new-tokens", type=int, default=512, metavar="N", help="of a refinement (default: 512)")
    add("--max-model-len", type=int, default=2048, metavar="N", help="default: 2048")
    add("--dtype", metavar="TYPE", help="of weights (default: float32 on CPUs)")
    add("--highest-reward", type=float, default=1.0, metavar="X", help="not refined (default: 1)")
    add("--reward", default="reward.verl_reward:compute_score", metavar="MODULE:NAME", help="called as by verl")
    add("--refiner", nargs="+", default=[], metavar="K=V", help="keys of the refiner's block")
    add("--jsonl", action="store_true", help="JSON lines, not parquet (check: always)")
    add("--license", metavar="NAME", help="of the data, for the card")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Run the command; a user's mistake prints one line and ends the process."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # errors only, if nobody has asked for more
    from refiner_worker.client import RunEndedError

    try:
        prepare_vllm()
        from recipe.offline.run import work  # after it: this imports verl

        is_stopped = asyncio.run(work(arguments))
    except (ValueError, OSError, RunEndedError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before there was anything to stop
        is_stopped = True
    raise SystemExit(130 if is_stopped else 0)
