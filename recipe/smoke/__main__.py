"""Run the smoke test: ``python -m recipe.smoke [--platform cpu] [--gpus N] [--output DIR] [OVERRIDE...]``.

Prints a table and a verdict, also as ``smoke.json``; exits with 1 if something is wrong. Overrides of the main job hold
for all its runs. Logs and run directories are in the output folder.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from recipe.online_refiner.run_dir import read_rows
from recipe.smoke.cases import CASES, Case
from recipe.smoke.letters import save_llama, save_prompts
from recipe.smoke.verdict import LIMITS, Steps, faults, table

NUM_SHOWN_LINES = 15
END_S = 30
"""What a run that is stopped may take to end."""


def run(case: Case, log: Path, overrides: list[str], timeout_s: float) -> str:
    """Run the main job; return what went wrong, or nothing. Nothing is left of a run that takes too long."""
    command = [sys.executable, "-m", "recipe.online_refiner.main", *overrides]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return f"no end within {timeout_s:g} s, see {log}"
    return f"exit code {code}, see {log}" if code else ""


def results_of(arguments: argparse.Namespace) -> dict[str, tuple[Steps, list[str]]]:
    """Run the cases and return their steps and faults by name; neither of one that was left out."""
    output, limits = arguments.output.absolute(), LIMITS["gpu" if arguments.platform == "gpu" else "cpu"]
    results: dict[str, tuple[Steps, list[str]]] = {}
    for case in CASES:
        is_broken = bool(case.goes_on and results[case.goes_on][1])
        if arguments.gpus < case.min_gpus or is_broken:
            why = f"after {case.goes_on}" if is_broken else f"needs {case.min_gpus} GPUs"
            print(f"{case.name}: left out ({why})", flush=True)
            results[case.name] = ([], [])
            continue
        overrides = case.command(output, platform=arguments.platform, num_gpus=arguments.gpus)
        log, start = output / f"{case.name.replace(', ', '-')}.log", time.monotonic()
        wrong = run(case, log, [*overrides, *arguments.overrides], arguments.timeout_s)
        metrics = output / case.folder / "metrics.jsonl"
        steps = [step for step in read_rows(metrics) if step["step"] in case.steps] if metrics.exists() else []
        results[case.name] = (steps, [wrong] if wrong else faults(case, steps, limits))
        print(f"{case.name} ({case.shows}): {time.monotonic() - start:.0f} s", flush=True)
        if wrong:
            print(*log.read_text(errors="replace").splitlines()[-NUM_SHOWN_LINES:], sep="\n", flush=True)
    return results


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="gpu_smoke", description="Does a node have all that a run needs?")
    parser.add_argument("--platform", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--gpus", type=int, help="of this node; default: all, on the CPU 2 logical ones")
    parser.add_argument("--output", type=Path, default=Path("runs/smoke"), help="an earlier test's is replaced")
    parser.add_argument("--timeout-s", type=float, default=900, help="of one run")
    parser.add_argument("overrides", nargs="*", help="of the main job, for all runs")
    arguments = parser.parse_args()
    names = _gpus() if arguments.platform == "gpu" else ["the CPU platform: no sleep, float32, no CUDA"] * 2
    arguments.gpus = arguments.gpus or len(names)
    if not names:
        sys.exit("error: nvidia-smi finds no GPU here; --platform cpu runs what needs none")
    print(f"on {arguments.gpus} x {names[0]}", flush=True)
    for case in CASES:
        shutil.rmtree(arguments.output / case.folder, ignore_errors=True)
    arguments.output.mkdir(parents=True, exist_ok=True)
    save_prompts(arguments.output / "prompts.parquet")
    save_llama(arguments.output / "model", hidden_size=128, intermediate_size=256)  # heads that any kernel knows
    results = results_of(arguments)
    wrong = {name: lines for name, (_, lines) in results.items() if lines}
    left_out = [name for name, (steps, lines) in results.items() if not steps and not lines]
    summary = {"wrong": wrong, "left_out": left_out, "steps": {name: steps for name, (steps, _) in results.items()}}
    (arguments.output / "smoke.json").write_text(json.dumps(summary, indent=1))
    print("", table(results), "", *(f"{name}: {line}" for name, lines in wrong.items() for line in lines), sep="\n")
    num_right = len(results) - len(wrong) - len(left_out)
    told = f", left out: {', '.join(left_out)}" if left_out else ""
    print(f"{'FAIL' if wrong else 'PASS'}: {num_right} right, {len(wrong)} wrong{told}")
    sys.exit(1 if wrong else 0)


def _gpus() -> list[str]:
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return []


if __name__ == "__main__":
    main()
