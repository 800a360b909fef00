"""Does a real model collapse at a learning rate that is too high, and what prevents it? The rules: PROTOCOL.md.

    python -m experiments.collapse run [--minutes M] [--number N] [--commit]    # the next runs, in the protocol's order
    python -m experiments.collapse status      # how many runs there are, and which one is next
    python -m experiments.collapse page        # the page, from the committed lines
    python -m experiments.collapse rehearse    # a run of two steps, in runs/collapse alone: does all of it work?

A complete run is one line in ``experiments/results/collapse/PHASE.jsonl``, and its folder is deleted; ``--commit``
commits each line. The same command goes on after any interruption; a run that was cut off begins anew. Runs have
one thread in each process, and are as nice as they can be. Ends with status 1 if a run failed, as it does where other
work keeps Ray from starting within its 30 seconds: the same command tries again.
"""

import argparse
import os
import sys
import time

from experiments.collapse import design, page


def status() -> None:
    """Print how many runs each phase has, and the next one."""
    lines = page.read(page.RESULTS)
    print(", ".join(f"{phase}: {len(own)}" for phase, own in lines.items()))
    following = design.next_run(lines)
    print("no run is missing" if following is None else f"next: {following[1].name} ({following[0]})")


def work(minutes: float | None, number: int | None, *, commits: bool) -> bool:
    """Do the next runs, one after the other, and return whether none failed.

    Args:
        minutes: No run begins after so many minutes; None: without end.
        number: Do so many runs at most; None: all.
        commits: Whether each line is committed.
    """
    from experiments.collapse import runner

    began = time.monotonic()
    if page.read_start(page.RESULTS) is None and not runner.measure_start(commits=commits):
        return False
    while number is None or number > 0:
        following = design.next_run(page.read(page.RESULTS))
        if following is None or (minutes is not None and time.monotonic() - began >= 60 * minutes):
            return True
        phase, job = following
        if not runner.run(job, page.RESULTS / f"{phase}.jsonl", commits=commits):
            return False
        number = None if number is None else number - 1
    return True


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "status", "page", "rehearse"))
    parser.add_argument("--minutes", type=float, help="no run begins after so many minutes")
    parser.add_argument("--number", type=int, help="so many runs at most")
    parser.add_argument("--commit", action="store_true", help="commit each line")
    arguments = parser.parse_args()
    if arguments.command in ("status", "page"):
        {"status": status, "page": page.write}[arguments.command]()
        return 0
    os.nice(19)
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.command == "rehearse":
        from experiments.collapse import runner

        return 0 if runner.rehearse() else 1
    return 0 if work(arguments.minutes, arguments.number, commits=arguments.commit) else 1


if __name__ == "__main__":
    sys.exit(main())
