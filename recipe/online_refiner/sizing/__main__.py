"""Play a step on fleets of several sizes: `python scripts/size_fleet.py --model PATH [--gpus 8 64 512]`.

It says for every placement what refining adds to a step, and of a dedicated refiner how many replicas keep that below
5 %. Lengths are log-normal, or a run's own (`--run`). The last line is a JSON object. `--validate FOLDER` holds the
simulation against runs (of scripts/bench_overhead.py): constants are fitted to some, what others took is predicted.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from recipe.online_refiner.sizing import constants, fitting, shapes
from recipe.online_refiner.sizing.fleet import Placement
from recipe.online_refiner.sizing.measured import read_run
from recipe.online_refiner.sizing.scaling import ActorPasses, Fleet, Workload, columns, size

FITTED = ("paper", "cap", "lora_none")
"""Arms of bench_overhead that constants are fitted to."""
ACTOR_PASSES: dict[str, ActorPasses] = {"penalty": (True, False), "sft": (False, True), "lagrangian": (True, True)}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder with a config.json, or the file")
    parser.add_argument("--refiner", type=Path, help="the same of the refiner (default: the model)")
    parser.add_argument("--constants", default="h100", help="h100 or a100 (estimates), or a file of --validate")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512], help="that train and write")
    parser.add_argument("--placement", nargs="+", choices=get_args(Placement), default=list(get_args(Placement)))
    parser.add_argument("--separate-async", action="store_true", help="the trainer; a dedicated refiner alone")
    parser.add_argument("--warm-up", type=int, default=1, help="its num_warmup_batches")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of a replica")
    parser.add_argument("--max-running", type=int, default=256, help="requests at once on a replica")
    parser.add_argument("--prompts-per-gpu", type=float, default=4.0, help="of a step")
    parser.add_argument("--run", type=Path, help="draw requests from this run directory")
    parser.add_argument("--n", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--response", type=int, default=1024, help="tokens, mean")
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a response, at most")
    parser.add_argument("--sigma", type=float, default=0.7, help="of the logarithm of lengths")
    parser.add_argument("--refined", type=float, default=0.5, help="share of the responses that are refined")
    parser.add_argument("--cap", type=int, help="refined responses of a prompt, at most")
    parser.add_argument("--mode", choices=list(ACTOR_PASSES), default="penalty", help="constraint.mode")
    parser.add_argument("--used", type=float, default=1.0, help="share of the refinements that pass the reward gate")
    parser.add_argument("--drafted", type=float, default=0.0, help="tokens drafted in a pass (refiner.draft)")
    parser.add_argument("--accepted", type=float, default=0.0, help="share of them that is accepted")
    parser.add_argument("--validate", type=Path, metavar="FOLDER", help="of runs, each in a folder named by its arm")
    parser.add_argument("--fit", nargs="+", default=list(FITTED), metavar="ARM", help=f"default: {' '.join(FITTED)}")
    parser.add_argument("--output", type=Path, help="write the constants: for --constants and sizing.constants")
    return parser.parse_args()


def main() -> int:
    """Print a table, and a JSON object; exit status 2 for a mistake of the user."""
    arguments = parse()
    try:
        found = validate(arguments) if arguments.validate else play(arguments)
    except (ValueError, OSError) as error:
        print("error:", error, file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


def play(arguments: argparse.Namespace) -> dict[str, object]:
    """Size every fleet."""
    given = (arguments.tensor_parallel,) * 2
    if arguments.constants in constants.GPUS:
        if arguments.model is None:
            raise ValueError("--model: set the folder of a model, or --constants to a file with measured ones")
        models = [_shape(path) for path in (arguments.model, arguments.refiner or arguments.model)]
        known = constants.of_gpu(arguments.constants, models[0], models[1], sizes=given)
    else:
        known = constants.read(arguments.constants)
    if min(arguments.gpus) < arguments.tensor_parallel:
        raise ValueError(f"--gpus {min(arguments.gpus)}: less than a replica of --tensor-parallel GPUs")
    rows = []
    for gpus in arguments.gpus:
        work = Workload(
            num_prompts=max(1, round(arguments.prompts_per_gpu * gpus)),
            group_size=arguments.n,
            **{name: getattr(arguments, name) for name in ("prompt", "response", "longest", "sigma", "refined", "cap")},
            gained=1 + arguments.drafted * arguments.accepted,
            computed=1 + arguments.drafted,
            used=arguments.used,
            actor_passes=ACTOR_PASSES[arguments.mode],
            run=read_run(arguments.run) if arguments.run else None,
        )
        placements: list[Placement] = ["dedicated"] if arguments.separate_async else arguments.placement
        for placement in placements:
            fleet = Fleet(
                gpus=gpus,
                placement=placement,
                sizes=given,
                most=(arguments.max_running,) * 2,
                is_async=arguments.separate_async,
                warm_up=arguments.warm_up,
            )
            rows.append(size(work, known, fleet))
    print(f"constants: {known.origin}\n{columns([asdict(row) for row in rows])}")
    return {"constants": known.origin, "fleets": [asdict(row) for row in rows]}


def validate(arguments: argparse.Namespace) -> dict[str, object]:
    """Hold predictions against what runs measured."""
    folders = sorted(path.parent for path in arguments.validate.glob("*/metrics.jsonl"))
    found, predictions = fitting.predict([read_run(folder) for folder in folders], arguments.fit)
    if arguments.output:
        found.write(arguments.output)
    print(
        f"a pass {found.refiner.pass_s:.4f} s, a token {found.refiner.token_s:.5f} s, the stage {found.stage_s:.2f} s; "
        f"a response's token costs {found.rollout_width:.2f}"
    )
    print(columns([{**asdict(one), "error": f"{one.error:+.0%}"} for one in predictions]))
    errors = [abs(one.error) for one in predictions if not one.is_fitted and one.measured_s]
    return {
        "errors": {one.name: one.error for one in predictions},
        "worst": max(errors, default=None),
        "num_predicted": len(errors),
    }


def _shape(path: Path) -> shapes.Shape:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"{path}: no such folder with a config.json on this machine; set one, as `hf download` makes it"
        )
    shape = shapes.read(json.loads(file.read_text(encoding="utf-8")))
    if shape is None:
        raise ValueError(f"{file}: it does not say how large the model is")
    return shape


if __name__ == "__main__":
    sys.exit(main())
