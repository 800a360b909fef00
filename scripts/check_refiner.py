"""Can a model refine its own answers, and with which template? Run it before you train.

    python scripts/check_refiner.py --model DIR --data FILE.parquet --reward my_reward:compute_score general math

The model answers problems of the file (verl's schema) at temperature 1, and then refines the answers below
--highest-reward, greedily, as in training. A way is a template (a name, or a file of your own) with what
`refiner.context` has, joined by `+`.

Prints how often another answer to the same problem has a higher reward: a refiner that improves fewer only costs. Then
a Markdown table: shares with 95 % intervals, the differences to the first way, and tokens. Last, each way against that
other answer. Every refinement is written to --output as JSON lines, problem by problem; Ctrl-C prints the table of
those.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).resolve().parents[1]), "."]

from recipe.evaluation.generation import prepare_vllm  # noqa: E402


def main() -> None:
    """Answer, refine in every way, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="+", metavar="TEMPLATE[+CONTEXT...]")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, nargs="+")
    parser.add_argument("--problems", type=int, default=24, help="of the data, drawn by --seed; 0: all of them")
    parser.add_argument("--samples", type=int, default=4, help="answers to each problem")
    parser.add_argument("--seed", type=int, default=0, help="of problems and answers")
    parser.add_argument("--max-response-tokens", type=int, default=512)
    parser.add_argument("--max-new-tokens", type=int, default=512, help="of a refinement")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--highest-reward", type=float, default=1.0, help="answers with it are not refined")
    parser.add_argument(
        "--reward", default="reward.verl_reward:compute_score", help="MODULE:FUNCTION, as verl calls it"
    )
    parser.add_argument("--output", type=Path, default=Path("check_refiner.jsonl"))
    arguments = parser.parse_args()
    log_level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_vllm()
    os.environ["VLLM_LOGGING_LEVEL"] = log_level
    from recipe.refiner_check import compare  # after it: this imports verl

    found, is_stopped = asyncio.run(compare(arguments))
    print(f"\nevery refinement: {arguments.output}")
    print(found.describe(arguments.highest_reward))
    raise SystemExit(130 if is_stopped else not found.wrong)


if __name__ == "__main__":
    main()
