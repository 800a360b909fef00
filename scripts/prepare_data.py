"""Write training data in verl's schema: `python scripts/prepare_data.py SOURCE [options] --output DIR`.

    mini-apps                      small problems generated here
    apps codeparrot/apps           a hub id, a file of such records, or a folder of APPS's own folders
    dialogue OpenRLHF/prompt-collection-v0.1   prompts without answers: a hub id or a file

Every source writes to DIR
    train.parquet, val.parquet   verl rows: data_source, prompt, ability, reward_model, extra_info
and, for sources that are read, card.md: counts, and every dropped record with its reason;
for problems with tests,
    problems.jsonl               problem_id, question, input_output, starter_code, ... as in APPS
    solutions.jsonl              problem_id, response: each reference solution that compiles, as an answer
so that `python -m reward.score --problems problems.jsonl --solutions solutions.jsonl` must print 1.0 on every line.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The script is run from a checkout as well as beside an installed package: then the packages lie one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipe.data_preparation.rows import Row, Screen, apps_row, dialogue_row, solutions_of
from recipe.data_preparation.sources import Record, read_records
from recipe.data_preparation.writer import Card, convert
from recipe.mini_apps.family import LEVELS
from recipe.mini_apps.generator import PROBLEMS_PER_FAMILY, generate
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
        rows = [p.to_verl_row(index) for index, p in enumerate(p for p in problems if p.split == split)]
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


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as parquet, all of them."""
    import datasets  # here: --help and wrong options need not wait seconds for it

    datasets.Dataset.from_list(rows).to_parquet(str(path))


def write_json_lines(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of everything that is read from somewhere."""
    parser.add_argument("source", help="hub id, file (json, jsonl, parquet), or folder of APPS problems")
    parser.add_argument("--split", default="train", help="split of a hub data set (default: train)")
    parser.add_argument("--name", help="data_source of the rows (default: the subcommand)")
    parser.add_argument("--val-fraction", type=float, default=0.05, help="share of rows in val.parquet")
    parser.add_argument("--tokenizer", help="model whose chat template counts the tokens of a prompt")
    parser.add_argument("--max-prompt-tokens", type=int, help="longer prompts are dropped; needs --tokenizer")
    parser.add_argument(
        "--benchmarks", nargs="*", default=[], metavar="SOURCE", help="evaluation problems that must not be trained on"
    )


def screen_of(arguments: argparse.Namespace) -> Screen:
    """Build the screen that the options ask for.

    Raises:
        ValueError: options that do not go together.
    """
    if not 0 <= arguments.val_fraction < 1:
        raise ValueError(f"--val-fraction {arguments.val_fraction}: give 0 or more and less than 1")
    if arguments.max_prompt_tokens is not None and not arguments.tokenizer:
        raise ValueError("--max-prompt-tokens needs --tokenizer MODEL, whose tokens are meant")
    tokenizer = None
    if arguments.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    benchmarks = (
        str(record.get("question") or record.get("prompt") or record.get("text") or "")
        for source in arguments.benchmarks
        for record in read_records(source, "test")
    )
    return Screen(filter(None, benchmarks), tokenizer, arguments.max_prompt_tokens)


def prepare_apps(arguments: argparse.Namespace) -> None:
    """Convert APPS."""
    _convert(arguments, apps_row, {"problems.jsonl": _problem_lines, "solutions.jsonl": _solution_lines})


def prepare_dialogue(arguments: argparse.Namespace) -> None:
    """Convert dialogue prompts."""
    _convert(arguments, dialogue_row, {})


def _convert(arguments: argparse.Namespace, build: Callable[..., Row], extra: dict[str, Callable[..., Any]]) -> None:
    card = convert(
        read_records(arguments.source, arguments.split),
        build,
        name=arguments.name or arguments.subcommand,
        screen=screen_of(arguments),
        output=arguments.output,
        val_fraction=arguments.val_fraction,
        extra=extra,
    )
    print(f"{card.summary()}; see {arguments.output / 'card.md'}")


def _problem_lines(record: Record, row: Row, _: Card) -> Iterator[dict[str, Any]]:
    problem_id = row["extra_info"]["problem_id"]
    starter = record.get("starter_code") or ""
    yield {
        "problem_id": problem_id,
        "question": record["question"],
        "input_output": row["reward_model"]["ground_truth"],
        "starter_code": starter,
    }


def _solution_lines(record: Record, row: Row, card: Card) -> Iterator[dict[str, Any]]:
    problem_id = row["extra_info"]["problem_id"]
    for number, (solution, fault) in enumerate(solutions_of(record)):
        if fault:
            card.faulty_solutions.append(f"{problem_id}, solution {number}: {fault}")
        else:
            yield {"problem_id": problem_id, "response": f"```python\n{solution}\n```"}


SUBCOMMANDS: dict[str, Subcommand] = {
    "mini-apps": Subcommand(
        summary="small problems generated here, for one machine: no download",
        add_arguments=add_mini_apps_arguments,
        prepare=prepare_mini_apps,
    ),
    "apps": Subcommand(
        summary="programming problems with tests, as in APPS",
        add_arguments=add_source_arguments,
        prepare=prepare_apps,
    ),
    "dialogue": Subcommand(
        summary="dialogue prompts, to be rewarded by a model",
        add_arguments=add_source_arguments,
        prepare=prepare_dialogue,
    ),
}

if __name__ == "__main__":
    sys.exit(main())
