"""Run the smoke test: ``online-refiner smoke [--platform cpu] [--gpus N] [--output DIR] [OVERRIDE...]``.

The command prints every fault that it finds and a verdict; its exit status is 1 if it found a fault. Overrides of the
main job apply to all runs. Logs, run directories and ``smoke.json`` with all metrics are in the output folder.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from recipe.runs.files import read_rows
from recipe.smoke.cases import CASES, LIMITS, Case, Steps, faults
from recipe.smoke.letters import save_llama, save_prompts

NUM_SHOWN_LINES = 15


def run(log: Path, overrides: list[str], timeout_s: float) -> str:
    """Run the main job; return what went wrong, or nothing. A run that takes too long is killed: Ray ends with it."""
    command = [sys.executable, "-m", "recipe.online_refiner.main", *overrides]
    with log.open("w") as stream:
        try:
            code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, timeout=timeout_s).returncode
        except subprocess.TimeoutExpired:
            return f"no end within {timeout_s:g} s, see {log}"
    return f"exit code {code}, see {log}" if code else ""


def result_of(case: Case, arguments: argparse.Namespace) -> tuple[Steps, list[str]]:
    """Run a case and return its steps and faults."""
    output = arguments.output.absolute()
    overrides = case.command(output, platform=arguments.platform, num_gpus=arguments.gpus)
    log, metrics = output / f"{case.name.replace(', ', '-')}.log", output / case.folder / "metrics.jsonl"
    print(f"{case.name} ({case.shows}) ...", flush=True)
    wrong = run(log, [*overrides, *arguments.overrides], arguments.timeout_s)
    steps = [step for step in read_rows(metrics) if step["step"] in case.steps] if metrics.exists() else []
    if wrong:
        print(*log.read_text(errors="replace").splitlines()[-NUM_SHOWN_LINES:], sep="\n", flush=True)
    return steps, [wrong] if wrong else [*faults(case, steps, LIMITS[arguments.platform])]


def main() -> None:
    """Run the smoke test."""
    parser = argparse.ArgumentParser(
        prog="online-refiner smoke",
        usage="%(prog)s [options] [KEY=VALUE ...]",
        description="Does a node have all that a run needs? Trains a tiny model, several times.\n"
        "Example: online-refiner smoke --platform cpu",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--platform", default="gpu", choices=list(LIMITS), help="default: gpu")
    add("--gpus", type=int, metavar="N", help="of this node (default: all; 2 logical ones on CPUs)")
    said = "folder to write to; an earlier test there is replaced (default: runs/smoke)"
    add("--output", type=Path, default=Path("runs/smoke"), metavar="DIR", help=said)
    add("--timeout-s", type=float, default=900, metavar="S", help="seconds of one run (default: 900)")
    add("overrides", nargs="*", metavar="KEY=VALUE", help="keys of online-refiner train, for all runs")
    arguments = parser.parse_args()
    there = 2
    if arguments.platform != "cpu":
        from recipe.online_refiner.verl_glue.preflight.devices import num_devices  # here: --help need not wait for it

        there = num_devices()
    arguments.gpus = arguments.gpus or there
    if not there:
        sys.exit("error: torch finds no GPU here; --platform cpu runs what needs none")
    for case in CASES:
        shutil.rmtree(arguments.output / case.folder, ignore_errors=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    save_prompts(arguments.output / "prompts.parquet")
    save_llama(arguments.output / "model", hidden_size=128, intermediate_size=256)  # heads that any kernel knows
    steps, found = dict[str, Steps](), dict[str, list[str]]()
    for case in CASES:
        if arguments.gpus >= case.min_gpus and not found.get(case.goes_on):
            steps[case.name], found[case.name] = result_of(case, arguments)
            print(*(f"{case.name}: {line}" for line in found[case.name] or ["right"]), sep="\n", flush=True)
    wrong = {name: lines for name, lines in found.items() if lines}
    left_out = [case.name for case in CASES if case.name not in found]
    summary = {"wrong": wrong, "left_out": left_out, "steps": steps}
    (arguments.output / "smoke.json").write_text(json.dumps(summary, indent=1))
    told = f", left out (too few GPUs, or what they resume failed): {', '.join(left_out)}" if left_out else ""
    print(f"{'FAIL' if wrong else 'PASS'}: {len(found) - len(wrong)} right, {len(wrong)} wrong{told}")
    sys.exit(1 if wrong else 0)
