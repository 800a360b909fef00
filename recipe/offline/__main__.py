"""The command ``online-refiner refine``: answers of a data set refined, as files that others train on.

    online-refiner refine general --model DIR --data FILE.parquet --reward my_reward:compute_score --output DIR

The model answers each row (verl's schema) at temperature 1, or a column `responses` has the answers, a list of texts.
Those below --highest-reward are refined as by ``online-refiner check``, which prints the same numbers for a sample.
With `--refiner placement=external url=http://host:8000/v1` a server refines; with `responses` too, no model is loaded,
and --model only names the tokenizer.

--output gets the files sft, preference and all (``files.py``), a card, and a journal: after a kill the same command
goes on.
"""

import argparse
import sys
from pathlib import Path

from recipe.check import add_options, load, run


def main() -> None:
    """Refine, and write."""
    parser = argparse.ArgumentParser(
        prog="online-refiner refine",
        usage="%(prog)s WAY --model DIR --data FILE --output DIR [options]",
        description="Refine a data set's answers into files for SFT and preference training.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    parser.add_argument("way", metavar="WAY", help="template or TEMPLATE+CONTEXT, as for check")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the same again: it goes on")
    parser.add_argument("--jsonl", action="store_true", help="JSON lines, not parquet")
    parser.add_argument("--license", metavar="NAME", help="of the data, for the card")
    add_options(parser)
    arguments = parser.parse_args()
    load()
    from recipe.offline.run import refine  # after it: this imports verl

    is_stopped = run(refine(arguments))
    if is_stopped:
        print("stopped: the same command goes on", file=sys.stderr)
    raise SystemExit(130 if is_stopped else 0)


if __name__ == "__main__":
    main()
