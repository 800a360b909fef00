"""Every method at its own learning rate, in the small world. The rules: PROTOCOL.md.

    python -m experiments.rates tune [--minutes M]     # learning rates and weights, on seeds that are thrown away
    python -m experiments.rates run [--minutes M]      # the runs that count, once all is tuned
    python -m experiments.rates status                 # how many runs are there, and what tuning has chosen
    python -m experiments.rates page                   # figure and tables from the committed lines

Bases are kept in ``runs/map/bases`` (or where the variable MAP_BASES says), lines in ``experiments/results/rates``. A
worker has one thread and is as nice as it can be; it may be killed at any time and goes on with the same command.
"""

import argparse

from experiments.map.__main__ import quietly


def status() -> None:
    """Print how far tuning and the counted runs are."""
    from experiments.rates import design

    found = design.outcomes(design.lines_of("tune"))
    for strength, methods in design.ALL_TUNED.items():
        for method in methods:
            result, missing = design.tuned(strength, method, found)
            text = f"{len(missing)} runs are missing"
            if result is not None:
                rate, weight = result.best
                text = f"rate {rate:g}, weight {weight:g}: {result.means[result.best]:.3f}"
            print(f"{strength} {method}: {text}")
    print(f"{len(found)} tuning runs, {len(design.lines_of('run'))} runs that count")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("tune", "run", "status", "page"))
    parser.add_argument("--minutes", type=float, help="no run begins after so many minutes")
    arguments = parser.parse_args()
    if arguments.phase == "page":
        from experiments.rates import page

        page.write()
        return
    quietly()
    if arguments.phase == "status":
        status()
        return
    from experiments.rates import runner

    print(f"{runner.work(arguments.phase, arguments.minutes)} runs done here")


if __name__ == "__main__":
    main()
