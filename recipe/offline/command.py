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
from typing import TYPE_CHECKING

from recipe.cpu_platform import prepare_vllm

if TYPE_CHECKING:  # --help needs none of the packages that it imports
    from recipe.offline.inputs import Asked

TEMPLATES = Path(__file__).parents[2] / "refiner_worker" / "templates"
"""The folder of the packaged templates."""


def check() -> None:
    """Compare variants of the refiner before a run."""
    parser = parser_of("check", "Before a run: can a model refine its own answers, and with which template?")
    parser.set_defaults(goes_on=False, problems=24, output=Path("check_refiner"), jsonl=True, license=None)
    run(parser.parse_args())


def refine() -> None:
    """Refine a data set."""
    parser = parser_of("refine", "Refine a data set's answers into files for SFT and preference training.")
    parser.add_argument("--jsonl", action="store_true", help="write JSON lines, not parquet")
    parser.add_argument("--license", metavar="NAME", help="licence of the data, for the card")
    parser.set_defaults(goes_on=True)
    run(parser.parse_args())


def parser_of(command: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of the options that both commands share."""
    names = ", ".join(sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
    parser = argparse.ArgumentParser(
        prog=f"online-refiner {command}",
        usage="%(prog)s VARIANT... --model DIR --data FILE... [options]",
        description=f"{description}\nVARIANT is a template, or TEMPLATE+CONTEXT as in general+feedback. Templates:\n"
        f"{names}, or a file of your own.\n"
        f"Example: online-refiner {command} general+feedback --model DIR --data rows.parquet",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
    )
    add = parser.add_argument
    add("ways", nargs="+", metavar="VARIANT", help=argparse.SUPPRESS)  # the description explains it
    add("--model", required=True, metavar="DIR", help="a model folder, or a hub id")
    add("--data", type=Path, required=True, nargs="+", metavar="FILE", help="parquet in verl's schema")
    add("--output", type=Path, default=Path("refined"), metavar="DIR", help="folder to write to (default: %(default)s)")
    add("--problems", type=int, default=0, metavar="N", help="number of rows; 0: all (default: %(default)s)")
    add("--samples", type=int, default=4, metavar="N", help="answers to each problem (default: 4)")
    add("--seed", type=int, default=0, metavar="N", help="seed of rows and answers (default: 0)")
    add("--max-response-tokens", type=int, default=512, metavar="N", help="longest answer in tokens (default: 512)")
    add("--max-new-tokens", type=int, default=512, metavar="N", help="longest refinement in tokens (default: 512)")
    add(
        "--max-model-len",
        type=int,
        default=2048,
        metavar="N",
        help="context length of the model (default: 2048)",
    )
    add("--dtype", metavar="TYPE", help="type of the weights (default: float32 on CPUs)")
    add(
        "--highest-reward",
        type=float,
        default=1.0,
        metavar="X",
        help="refine only answers below this (default: 1)",
    )
    add(
        "--reward",
        default="reward.verl_reward:compute_score",
        metavar="MODULE:NAME",
        help="as my_reward:compute_score",
    )
    add("--refiner", nargs="+", default=[], metavar="K=V", help="keys of the block refiner, as temperature=0.7")
    return parser


def run(arguments: argparse.Namespace) -> None:
    """Run the command; a user's mistake prints one line and ends the process."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # errors only, if nobody has asked for more
    from recipe.offline.inputs import read_options

    try:
        asked = read_options(arguments)
        prepare_vllm()
        is_stopped = _work(arguments, asked)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before there was anything to stop
        is_stopped = True
    raise SystemExit(130 if is_stopped else 0)


def _work(arguments: argparse.Namespace, asked: "Asked") -> bool:
    """Return whether Ctrl-C ended the work.

    Raises:
        ValueError: If something is wrong with the model, an earlier run's folder or the servers.
    """
    from recipe.offline.run import work  # these import verl and Ray, which takes seconds
    from refiner_worker.client import RunEndedError

    try:
        return asyncio.run(work(arguments, asked))
    except RunEndedError as error:
        raise ValueError(str(error)) from error
