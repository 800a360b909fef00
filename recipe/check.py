"""The command ``online-refiner check``: can a model refine its own answers, and with which template?

    online-refiner check general math --model DIR --data FILE.parquet --reward my_reward:compute_score

The model answers problems of the file (verl's schema) at temperature 1, and then refines the answers below
--highest-reward, greedily, as in training. A column `responses`, a list of texts for each problem, is taken in place of
its answers. A way is a template (a name, or a file of your own) with what `refiner.context` has and with other keys of
the refiner's block, joined by `+`: `general+feedback+reject_leaks=false`. With `general+temperature=1+samples=4` it
draws four refinements, of which the best counts, and prints how often the best of 1, 2, 3 and 4 improves an answer.

Prints how often another answer to the same problem has a higher reward: a refiner that improves fewer only costs. Then
a Markdown table: shares with 95 % intervals, the differences to the first way, and tokens. Last, each way against that
other answer: of all wrong answers, of those to problems that no answer solves, and of the others. Every refinement is
written to --output as JSON lines, problem by problem; Ctrl-C prints the table of those.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from recipe.cpu_platform import prepare_vllm

Found = TypeVar("Found")


def main() -> None:
    """Answer, refine in every way, print."""
    parser = argparse.ArgumentParser(
        prog="online-refiner check",
        usage="%(prog)s WAY... --model DIR --data FILE... [options]",
        description="Before a run: can a model refine its own answers, and with which template?",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    parser.add_argument("ways", nargs="+", metavar="WAY", help="template, or TEMPLATE+CONTEXT, as general+feedback")
    parser.add_argument("--problems", type=int, default=24, metavar="N", help="of the data; 0: all (default: 24)")
    add_options(parser)
    parser.add_argument("--output", type=Path, default=Path("check_refiner.jsonl"), metavar="FILE", help="JSON lines")
    arguments = parser.parse_args()
    load()
    from recipe.refiner_check import compare, config_of  # after it: this imports verl

    async def check() -> Any:
        for way in arguments.ways:
            if config_of(way, arguments).placement == "external":
                raise ValueError("refiner.placement=external: check asks no servers; online-refiner refine does")
        return await compare(arguments)

    found, is_stopped = run(check())
    print(f"\nevery refinement: {arguments.output}")
    print(found.describe(arguments.highest_reward))
    raise SystemExit(130 if is_stopped else not found.wrong)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what ``check`` and ``refine`` have in common."""
    parser.add_argument("--model", required=True, metavar="DIR", help="or hub id")
    parser.add_argument("--data", type=Path, required=True, nargs="+", metavar="FILE", help="parquet, verl's schema")
    parser.add_argument("--samples", type=int, default=4, metavar="N", help="answers to each problem (default: 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of problems and answers")
    parser.add_argument("--max-response-tokens", type=int, default=512, metavar="N", help="default: 512")
    parser.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="of a refinement (default: 512)")
    parser.add_argument("--max-model-len", type=int, default=2048, metavar="N", help="default: 2048")
    parser.add_argument("--dtype", metavar="TYPE", help="of the weights (default: float32 on CPUs, else the model's)")
    parser.add_argument("--highest-reward", type=float, default=1.0, metavar="X", help="not refined (default: 1)")
    parser.add_argument(
        "--reward", default="reward.verl_reward:compute_score", metavar="MODULE:NAME", help="called as by verl"
    )
    parser.add_argument("--refiner", nargs="+", default=[], metavar="K=V", help="keys of the refiner's block")


def load() -> None:
    """Prepare vLLM, which says errors only if its user has not asked for more."""
    log_level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_vllm()
    os.environ["VLLM_LOGGING_LEVEL"] = log_level


def run(work: Coroutine[Any, Any, Found]) -> Found:
    """Return what the work returns; a mistake of the user's ends the process by one line."""
    from refiner_worker.client import RunEndedError

    try:
        return asyncio.run(work)
    except (ValueError, OSError, RunEndedError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before there was anything to stop
        raise SystemExit(130) from None
