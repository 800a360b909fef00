"""Write training data in verl's schema: `python scripts/prepare_data.py mini-apps --output DIR`.

Every subcommand writes to DIR
    train.parquet, val.parquet   verl rows: data_source, prompt, ability, reward_model, extra_info
and, for problems with tests,
    problems.jsonl               problem_id, question, input_output, starter_code, ... as in APPS
    solutions.jsonl              problem_id, response: the reference solution as an answer
so that `python -m reward.score --problems problems.jsonl --solutions solutions.jsonl` must print 1.0 on every line.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The script is run from a checkout as well as beside an installed package: then the packages lie one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipe.mini_apps.family import LEVELS
from recipe.mini_apps.generator import PROBLEMS_PER_FAMILY, MiniProblem, generate
from reward.verl_reward import validate_rows


@dataclass(slots=True, kw_only=True, frozen=True)
class Subcommand:
    """One source of data."""

    summary: str  # one line for --help
    add_arguments: Callable[[argparse.ArgumentParser], None]  # the options beside --output
    prepare: Callable[[argparse.Namespace], None]  # writes the files; ValueError for wrong options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; exit status 0, or 2 if an option or the data is wrong."""
    parser = argparse.ArgumentParser(description="Write training data in verl's schema.")
    subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SOURCE")
    for name, subcommand in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=subcommand.summary, description=subcommand.summary)
        subparser.add_argument("--output", type=Path, required=True, help="folder to write to; made if missing")
        subcommand.add_arguments(subparser)
    arguments = parser.parse_args(argv)
    try:
        SUBCOMMANDS[arguments.subcommand].prepare(arguments)
    except (ValueError, OSError) as error:  # wrong options or data: one line for the user, no traceback
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def add_mini_apps_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of mini-apps."""
    parser.add_argument("--level", choices=(*LEVELS, "all"), default="all", help="difficulty (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same problems")
    parser.add_argument("--problems-per-family", type=int, default=PROBLEMS_PER_FAMILY, help="size of the data")


def prepare_mini_apps(arguments: argparse.Namespace) -> None:
    """Generate mini APPS and write it.

    Raises:
        ValueError: more problems wanted than a family has.
    """
    problems = generate(
        None if arguments.level == "all" else arguments.level,
        seed=arguments.seed,
        problems_per_family=arguments.problems_per_family,
    )
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        rows = [verl_row(p, index) for index, p in enumerate(p for p in problems if p.split == split)]
        validate_rows(rows)
        write_parquet(rows, output / f"{split}.parquet")
    write_json_lines([problem.to_row() for problem in problems], output / "problems.jsonl")
    write_json_lines(
        [{"problem_id": p.problem_id, "response": f"```python\n{p.solution}```"} for p in problems],
        output / "solutions.jsonl",
    )
    for (split, level), count in sorted(Counter((p.split, p.difficulty) for p in problems).items()):
        num_families = len({p.family for p in problems if (p.split, p.difficulty) == (split, level)})
        print(f"{split:5} {level:6} {count:4} problems of {num_families} families")
    print(f"{len(problems)} problems written to {output}")


def verl_row(problem: MiniProblem, index: int) -> dict[str, Any]:
    """One row in verl's schema; `ground_truth` is what reward.verl_reward.compute_score reads."""
    ground_truth = {**problem.input_output, "problem_id": problem.problem_id}
    return {
        "data_source": "mini_apps",
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(ground_truth)},
        "extra_info": {
            "problem_id": problem.problem_id,
            "family": problem.family,
            "difficulty": problem.difficulty,
            "split": problem.split,
            "index": index,
        },
    }


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as parquet, all of them."""
    import datasets  # here: --help and wrong options need not wait seconds for it

    datasets.Dataset.from_list(rows).to_parquet(str(path))


def write_json_lines(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


SUBCOMMANDS: dict[str, Subcommand] = {
    "mini-apps": Subcommand(
        summary="small problems generated here, for one machine: no download",
        add_arguments=add_mini_apps_arguments,
        prepare=prepare_mini_apps,
    ),
}

if __name__ == "__main__":
    sys.exit(main())
