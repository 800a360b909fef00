"""Predict what refining adds to a step, from runs of the same machine: `python -m recipe.sizing RUN_DIR...`.

Constants are fitted to the runs named by `--fit` (default: all that refine after their rollout, `colocated`); what each
run took is then predicted, and with `--replicas` what it would take with so many replicas of a dedicated refiner. The
last line is a JSON object.
"""

import argparse
import json
import sys
from pathlib import Path

from recipe.sizing.measured import Constants, fit, read_run


def main() -> int:
    """Print a table and a JSON object; exit status 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--fit", nargs="+", metavar="NAME", help="names of the runs that constants are fitted to")
    parser.add_argument("--constants", type=Path, help="take these instead of fitting some")
    parser.add_argument("--output", type=Path, help="write the constants: for --constants")
    parser.add_argument("--replicas", type=int, nargs="+", default=[], help="of a dedicated refiner that streams")
    arguments = parser.parse_args()
    try:
        print(json.dumps(predict(arguments)))
    except (ValueError, OSError) as error:
        print("error:", error, file=sys.stderr)
        return 2
    return 0


def predict(arguments: argparse.Namespace) -> dict[str, object]:
    """Fit or read constants, print measured and predicted seconds, and return them."""
    runs = {folder.name: read_run(folder) for folder in arguments.runs}
    names = arguments.fit or [
        name for name, run in runs.items() if run.config.refiner.placement == "colocated" and run.measured_s
    ]
    if missing := [name for name in names if name not in runs]:
        raise ValueError(f"--fit {missing[0]}: no such run; there are: {', '.join(runs)}")
    known = Constants.read(arguments.constants) if arguments.constants else fit([runs[name] for name in names])
    if arguments.output:
        known.write(arguments.output)
    print(f"{known.origin}: a pass {known.pace.pass_s:.4f} s, a token {known.pace.token_s:.6f} s, the stage ", end="")
    print(f"{known.stage_s:.2f} s; a response's token costs {known.width:.2f}, with LoRA {known.adapter_width:.2f}")
    columns = ["run", "measured, s", "predicted, s", *(f"dedicated x {number}, s" for number in arguments.replicas)]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    found = {}
    for name, run in runs.items():
        dedicated = {
            number: run.predict_s(known, placement="dedicated", streams=True, num_refiners=number)
            for number in arguments.replicas
        }
        row = {"measured_s": run.measured_s, "predicted_s": run.predict_s(known)}
        print("| " + " | ".join([name, *(f"{value:.2f}" for value in (*row.values(), *dedicated.values()))]) + " |")
        found[name] = {**row, "dedicated_s": dedicated, "is_fitted": not arguments.constants and name in names}
    return {"origin": known.origin, "runs": found}


if __name__ == "__main__":
    sys.exit(main())
