"""The map: when does an online refiner help? The rules: PROTOCOL.md.

    python -m experiments.map bases                    # train pi_0, and measure its refiners
    python -m experiments.map tune [--workers N]       # weights, on seeds that are thrown away
    python -m experiments.map choose                   # write what tuning has chosen
    python -m experiments.map run [--workers N]        # the runs that count
    python -m experiments.map explore [--workers N]    # runs that the results asked for: they decide nothing
    python -m experiments.map page                     # figure and tables from the committed lines

Bases are kept in ``runs/map/bases``, lines in ``experiments/results/map``. ``tune``, ``run`` and ``explore`` do
the next missing run until none is missing, and may be killed at any time. A worker has one thread and is as nice as it
can be.
"""

import argparse
import json
import os
import subprocess
import sys
import warnings

from recipe.cpu_platform import ENVIRONMENT

EFFECT, ALPHA, POWER = 0.03, 0.001, 0.8
"""The values of PROTOCOL.md: a difference of the solve rate, the p that each of ten contrasts needs, and the power."""


def quietly() -> None:
    """Set what verl reads when it is imported, and give way to all other processes."""
    os.environ |= {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    os.nice(19)
    warnings.filterwarnings("ignore")


def work(phase: str, minutes: float | None) -> None:
    """Do the runs of a phase in this process."""
    quietly()
    from experiments.map import design, runner

    specs = {
        "tune": design.tuning(),
        "run": design.counted(design.read_weights()),
        "explore": design.explored(),
    }[phase]
    print(f"{runner.work(specs, design.RESULTS / f'{phase}.jsonl', minutes)} runs done here")


def measure_bases() -> None:
    """Train the bases and write what they can."""
    import torch

    torch.set_num_threads(1)
    from experiments.map import bases, design, runner

    found = []
    for strength in dict.fromkeys(point.strength for point in design.POINTS.values()):
        for seed in range(1, design.NUM_BASES + 1):
            weights = bases.base(strength, seed)
            measured = {name: round(value, 3) for name, value in bases.rates(bases.model_of(weights)).items()}
            found.append({"strength": strength, "seed": seed, "base": runner.fingerprint(weights), **measured})
            print(json.dumps(found[-1]), flush=True)
    design.RESULTS.mkdir(parents=True, exist_ok=True)
    text = "\n".join(json.dumps(one, separators=(",", ":")) for one in found) + "\n"
    (design.RESULTS / "bases.jsonl").write_text(text)


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=("bases", "tune", "choose", "run", "explore", "page"))
    parser.add_argument("--workers", type=int, default=1, help="processes; each takes a core")
    parser.add_argument("--minutes", type=float, help="after that no run begins")
    arguments = parser.parse_args()
    if arguments.phase in ("tune", "run", "explore"):
        if arguments.workers == 1:
            work(arguments.phase, arguments.minutes)
            return
        limit = [] if arguments.minutes is None else ["--minutes", str(arguments.minutes)]
        command = [sys.executable, "-m", "experiments.map", arguments.phase, *limit]
        workers = [subprocess.Popen(command) for _ in range(arguments.workers)]
        if any([worker.wait() for worker in workers]):
            raise SystemExit("a worker failed: its lines are above")
        return
    if arguments.phase == "page":
        from experiments.map import page

        page.write()
        return
    quietly()
    if arguments.phase == "bases":
        measure_bases()
        return
    from experiments.map import design

    tuned = design.read(design.RESULTS / "tune.jsonl")
    design.WEIGHTS.write_text(json.dumps(design.choose(tuned), indent=1) + "\n")
    deviation, number = design.pairs_needed(tuned, EFFECT, ALPHA, POWER)
    print(design.WEIGHTS.read_text())
    print(
        f"deviation of differences {deviation:.4f}: {number} pairs show a difference of {EFFECT} with p below {ALPHA}"
    )


if __name__ == "__main__":
    main()
