"""Evaluate a model, or samples from a file, by pass@k: `python scripts/evaluate.py --benchmark humaneval+ --model DIR`.

    --benchmark humaneval | humaneval+ | mbpp | mbpp+ | gsm8k | math500
                | rows (any file of scripts/prepare_data.py, as --data)
    --model DIR_OR_HUB_ID       vLLM draws the samples: greedy, or --num-samples N --temperature T
    --samples FILE              json lines {task_id, completion} or {task_id, solution}, also gzipped

Prompt formats (--prompt)
    chat         the model's chat template around a request for the whole function in one ```python block; the program
                 is the last such block, behind the imports and helper functions of HumanEval's prompt
    completion   the bare prompt; the program is the prompt with the answer up to a stop sequence

A sample passes when it passes every test, in the sandbox. The JSON file (--output) holds the numbers, how they came
about, and every sample with its program and verdict. Exit status: 0; 1 if programs could not be run (infra_error;
pass@k is then null); 2 if the command line or the input is wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recipe.evaluation.benchmarks import BENCHMARKS, Task, load_tasks
from recipe.evaluation.generation import Sampling, generate
from recipe.evaluation.plus_tests import ReferenceNotRunError
from recipe.evaluation.prompts import PROMPTS
from recipe.evaluation.result_file import sample_rows, versions, write_result
from recipe.evaluation.samples import Sample, read_samples
from recipe.evaluation.scoring import Result, count_verdicts, limits_of, pass_at, score_samples
from reward.apps import Verdict
from reward.options import add_sandbox_options, positive_int, sandbox_config
from reward.sandbox import shared_sandbox


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = parse_arguments(argv)
    try:
        return evaluate(arguments)
    except (ValueError, OSError) as error:  # wrong input: one line for the user, no traceback
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ReferenceNotRunError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


def evaluate(arguments: argparse.Namespace) -> int:
    """Get samples, run them, write and print the result; returns the exit status."""
    limits = limits_of(arguments.timeout)
    ks = wanted_ks(arguments.k)
    sandbox = shared_sandbox(sandbox_config(arguments))
    known = load_tasks(arguments.benchmark, arguments.data)
    tasks = known[: arguments.limit]
    samples, origin = samples_of(arguments, known, tasks, ks)
    print(f"running {len(samples)} programs of {len(tasks)} problems ...", file=sys.stderr)
    results = score_samples(samples, sandbox=sandbox, limits=limits, num_workers=arguments.workers)
    rates = pass_at(results, ks)
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
        "samples": sample_rows(results),
    }
    path = arguments.output or default_output(arguments)
    write_result(result, path)
    print_table(result, path)
    return report_infra_errors(results)


def samples_of(
    arguments: argparse.Namespace, known: list[Task], tasks: list[Task], ks: list[int]
) -> tuple[list[Sample], dict[str, Any]]:
    """Return the samples, and what the result says of where they come from.

    Raises:
        ValueError: a k above the number of samples, or what reading or drawing them raises.
    """
    if arguments.samples is not None:
        samples = read_samples(arguments.samples, known, tasks, is_partial=arguments.partial)
        check_ks(ks, samples)
        return samples, {"model": None, "samples_file": str(arguments.samples), "prompt": None, "sampling": None}
    sampling = Sampling(
        num_samples=arguments.num_samples,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        max_new_tokens=arguments.max_new_tokens,
        seed=arguments.seed,
    )
    if max(ks) > sampling.num_samples:
        raise ValueError(f"pass@{max(ks)} needs --num-samples {max(ks)} or more")
    generated = generate(arguments.model, tasks, arguments.prompt, sampling)
    layout = PROMPTS[arguments.prompt]
    prompt = {
        "format": arguments.prompt,
        "summary": layout.summary,
        "stops": layout.stops(tasks[0]),
        "example": generated.example_prompt,
    }
    origin = {"model": arguments.model, "samples_file": None, "prompt": prompt, "sampling": asdict(sampling)}
    return generated.samples, origin


def wanted_ks(text: str) -> list[int]:
    """Return the k of `--k 1,10`.

    Raises:
        ValueError: it is not a list of whole numbers from 1.
    """
    if not all(part.strip().isdecimal() and int(part) > 0 for part in text.split(",")):
        raise ValueError(f"--k {text}: give whole numbers from 1, as in --k 1,10")
    return sorted({int(part) for part in text.split(",")})


def check_ks(ks: list[int], samples: list[Sample]) -> None:
    """Check that every problem has enough samples.

    Raises:
        ValueError: one has not.
    """
    counts: dict[str, int] = {}
    for sample in samples:
        counts[sample.task.task_id] = counts.get(sample.task.task_id, 0) + 1
    task_id, fewest = min(counts.items(), key=lambda item: item[1])
    if max(ks) > fewest:
        raise ValueError(f"pass@{max(ks)} needs {max(ks)} samples of every task, {task_id} has {fewest}: set --k lower")


def default_output(arguments: argparse.Namespace) -> Path:
    """Return a new path under runs/evaluation."""
    source = arguments.model if arguments.samples is None else arguments.samples.name.partition(".")[0]
    name = Path(source).name or "model"
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return Path("runs/evaluation") / f"{arguments.benchmark}-{name}-{now}.json"


def print_table(result: dict[str, Any], path: Path) -> None:
    """Print the result in a few lines."""
    prompt, sampling = result["prompt"], result["sampling"]
    of_all = result["num_problems_of_benchmark"]
    lines = [
        ("benchmark", f"{result['benchmark']}, {result['num_problems']} of {of_all} problems of {result['data']}"),
        ("samples", f"{result['num_samples']} from {result['model'] or result['samples_file']}"),
    ]
    if prompt is not None:
        lines.append(("prompt", f"{prompt['format']}: {prompt['summary']}"))
        lines.append(("sampling", ", ".join(f"{name} {value}" for name, value in sampling.items())))
    lines.append(("verdicts", ", ".join(f"{name} {count}" for name, count in result["verdicts"].items())))
    lines += [(name, "-" if rate is None else f"{rate:.4f}") for name, rate in result["pass_at_k"].items()]
    lines.append(("written to", str(path)))
    for name, value in lines:
        print(f"{name:11} {value}")


def report_infra_errors(results: list[Result]) -> int:
    """Name the samples that could not be run; returns the exit status."""
    failed = [result for result in results if result.verdict is Verdict.INFRA_ERROR]
    for result in failed:
        print(f"error: {result.sample.task.task_id} could not be run: {result.detail}", file=sys.stderr)
    return 1 if failed else 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Evaluate a model, or samples from a file, by pass@k.")
    parser.add_argument("--benchmark", choices=BENCHMARKS, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="folder or hub id")
    source.add_argument("--samples", type=Path, help="json lines: task_id, and completion or solution")
    parser.add_argument("--data", help="hub id or file of the benchmark's records (default: the benchmark's hub id)")
    parser.add_argument("--output", type=Path, help="JSON file to write (default: a new one in runs/evaluation)")
    parser.add_argument("--k", default="1", help="which pass@k, as in 1,10 (default: 1)")
    parser.add_argument("--limit", type=positive_int, help="evaluate the first so many problems only")
    parser.add_argument("--partial", action="store_true", help="with --samples: leave out problems without samples")
    defaults = Sampling()
    parser.add_argument("--prompt", choices=PROMPTS, default="chat", help="see above (default: chat)")
    parser.add_argument("--num-samples", type=int, default=defaults.num_samples, help="a problem (default: 1)")
    parser.add_argument("--temperature", type=float, default=defaults.temperature, help="0, the default, is greedy")
    parser.add_argument("--top-p", type=float, default=defaults.top_p)
    parser.add_argument("--max-new-tokens", type=int, default=defaults.max_new_tokens)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    add_sandbox_options(parser, test_s=10.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
