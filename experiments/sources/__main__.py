"""Which source of better answers wins without training? The rules: PROTOCOL.md.

    python -m experiments.sources run [--minutes M]    # answers, then refinements, one block after the other
    python -m experiments.sources status               # how far the lines are
    python -m experiments.sources page                 # the page, from the committed lines

Lines are in ``experiments/results/sources``. ``run`` may be ended at any time, and goes on when it is typed again. It
uses one core, and is as nice as it can be.
"""

import argparse
import asyncio
import os

from experiments.sources import design, page


def status() -> None:
    """Print how many problems are answered, unsolved and refined."""
    answers, draws = (design.read(design.RESULTS / name) for name in (design.ANSWERS, design.DRAWS))
    number = len(list(design.blocks(answers)))
    print(
        f"{len(answers)} problems answered, {len(design.unsolved(answers))} unsolved, {len(draws)} of {number} blocks"
    )


def run(minutes: float | None) -> None:
    """Do what is missing."""
    os.nice(19)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from experiments.get_qwen_coder import folder
    from recipe.cpu_platform import prepare_vllm

    prepare_vllm()
    from experiments.sources import runner  # after it: this imports vLLM

    asyncio.run(runner.work(str(folder()), minutes))


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "status", "page"))
    parser.add_argument("--minutes", type=float, help="no block begins after so many minutes")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.minutes)
    else:
        {"status": status, "page": page.write}[arguments.command]()


if __name__ == "__main__":
    main()
