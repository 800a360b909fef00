"""Run the lab's experiment, phase by phase.

    python -m experiments.lab.run calibrate     # which learning rate
    python -m experiments.lab.run tune          # which weight, for each method
    python -m experiments.lab.run final         # the comparison

    [OVERRIDE...] [--only NAME ...] [--parallel 1] [--minutes M] [--output FOLDER] [--protocol FILE]

Each run is one of the main job, with the protocol's preset (`experiment=lab`, whose base model and problems stand in
experiments/results/lab_base), in its own folder. Its metrics are added to a file beside the protocol (`lab_final.csv`)
when it is complete; what is there is not run again, what was cut off goes on from its last checkpoint, so the same
command continues after any interruption. A phase that is complete writes what it has chosen into the protocol
(`experiments/lab/protocol.py`), which the next one reads. Overrides hold for every run; with others choose another
`--output` and `--protocol`. Ends with status 1 if a run failed. What came of it: `experiments/lab/findings.py`.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from experiments.lab import jobs, metrics, protocol
from recipe.runs.files import read_rows

PROTOCOL = jobs.ROOT / "experiments" / "results" / "lab.yaml"
BASE = PROTOCOL.with_name("lab_base")
WEIGHTS = "7a2335b9aac1b7c7045cc7789c53e0a49b18501a"
"""The base model's weights (6 MB) as an object of this repository's history; no release's recipe makes them again."""


def restore_weights(base: Path) -> None:
    """Write the base model's weights into its folder, unless they are there.

    Raises:
        ValueError: The history is not there, as in a shallow clone.
    """
    file = base / "model.safetensors"
    if file.exists():
        return
    found = subprocess.run(["git", "cat-file", "blob", WEIGHTS], cwd=jobs.ROOT, capture_output=True)
    if found.returncode:
        raise ValueError(f"{file} is in the history alone: run `git fetch --unshallow`, then this command again")
    file.write_bytes(found.stdout)


def choose(rules: protocol.Protocol, phase: str, path: Path) -> None:
    """Complete the protocol by the choices of a phase."""
    found = {name: rules.held_out_of(steps) for name, steps in metrics.read(metrics.path_of(path, phase)).items()}
    if phase == "calibrate":
        rules.learning_rate = rules.choose_learning_rate(found)
        print(f"learning rate: {rules.learning_rate:g}")
    elif phase == "tune":
        rules.learn_from_tuning(found)
        print(f"weights: {rules.weights}")
    protocol.write(rules, path)


def main() -> int:
    """Run what is missing, and choose."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("phase", choices=["calibrate", "tune", "final"])
    parser.add_argument("--only", nargs="+", default=[], help="runs whose names begin so")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; each takes about 9 GB of memory")
    parser.add_argument("--minutes", type=float, help="nothing begins after that, and what is running is ended")
    parser.add_argument("--prefix", default="", help="before each run's command, such as `unshare --mount ...`")
    parser.add_argument("--output", type=Path, default=Path("runs/lab"))
    parser.add_argument("--protocol", type=Path, default=PROTOCOL)
    arguments, overrides = parser.parse_known_args()
    output, path = arguments.output.absolute(), arguments.protocol
    rules = protocol.read(path)
    try:
        runs = dict(rules.runs(arguments.phase))
        is_of_base = rules.experiment == protocol.Protocol().experiment
        if is_of_base:
            restore_weights(BASE)
    except ValueError as error:
        parser.error(str(error))
    overrides.insert(0, f"experiment={rules.experiment}")
    if arguments.parallel > 1 and not arguments.prefix and any("gpu" in override for override in overrides):
        parser.error("--parallel on a GPU: runs would share verl's sockets in /tmp; give each its own by --prefix")
    fingerprint = metrics.fingerprint(BASE) if is_of_base else ""
    folder = output / arguments.phase
    collected = metrics.path_of(path, arguments.phase)
    known = metrics.read(collected)
    wanted = [name for name in runs if name.startswith(tuple(arguments.only) or "") and name not in known]

    def held_out(run_dir: Path) -> dict[int, float]:
        return rules.held_out_of(read_rows(run_dir / "metrics.jsonl"))

    def collect(name: str) -> None:
        metrics.add(collected, name, read_rows(folder / name / "metrics.jsonl"), rules.held_out, fingerprint)

    all_done = jobs.run_all(
        {name: [*runs[name], *overrides] for name in wanted},
        folder,
        rules.num_steps,
        parallel=arguments.parallel,
        minutes=arguments.minutes,
        prefix=shlex.split(arguments.prefix),
        is_done=lambda run_dir: held_out(run_dir).keys() >= set(rules.outcome_steps),
        on_complete=collect,
    )
    if metrics.read(collected).keys() >= runs.keys():
        choose(rules, arguments.phase, path)
    return 0 if all_done else 1


if __name__ == "__main__":
    sys.exit(main())
