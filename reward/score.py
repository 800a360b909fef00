"""Score answers from the command line: `online-refiner score --problems P.jsonl --solutions S.jsonl`.

A problem has `input_output` as in APPS (for programs) or `answer`, the expected final answer (for mathematics). The
command prints one JSON object a line, in the order of the solutions. Its exit status is 0; 1 if an answer could not be
run (infra_error, score null) or a problem's test code could not be tried; 2 if the input or the command line is wrong.
"""

import argparse
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from reward.apps import Score, score_response
from reward.grading import Graded
from reward.judge import JudgeLostError
from reward.limits import Limits
from reward.math import MathProblem
from reward.problem import Problem, read_json
from reward.sandbox import shared_sandbox


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = _parse_arguments(argv)
    try:
        limits = Limits(test_s=arguments.timeout)
        sandbox = shared_sandbox(num_slots=arguments.workers, allow_unsafe=arguments.allow_unsafe)
        problems = load_problems(arguments.problems)
        solutions = load_solutions(arguments.solutions, problems)
    except (ValueError, OSError, JudgeLostError) as error:  # one line for the user, no traceback
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, JudgeLostError) else 2
    num_infra_errors = 0

    def score(solution: tuple[Any, str]) -> Score:
        problem = problems[str(solution[0])]
        if isinstance(problem, Graded):
            return problem.score(solution[1], limits)
        return score_response(problem, solution[1], limits, sandbox=sandbox)

    with ThreadPoolExecutor(max_workers=arguments.workers) as pool:
        try:
            for (problem_id, _), result in zip(solutions, pool.map(score, solutions), strict=True):
                num_infra_errors += result.outcome == "infra_error"
                print(json.dumps({"problem_id": problem_id, **asdict(result)}), flush=True)
        finally:  # also where the scores cannot be written
            pool.shutdown(cancel_futures=True)
    if num_infra_errors:
        print(f"error: {num_infra_errors} answers could not be run (outcome infra_error)", file=sys.stderr)
    return 1 if num_infra_errors else 0


def load_problems(path: Path) -> dict[str, Problem | MathProblem]:
    """Return the problems by id; ValueError names the line of one that is malformed or occurs twice."""
    problems: dict[str, Problem | MathProblem] = {}
    for where, row in _read_rows(path, "--problems", "problem_id"):
        key = str(row["problem_id"])
        if key in problems:
            raise ValueError(f"{where}: problem_id {key} occurs twice: give every problem its own id")
        try:
            if row.get("answer") is not None and row.get("input_output") is None:
                problems[key] = MathProblem.from_answer(row["answer"], problem_id=key)
            else:
                problems[key] = Problem.from_input_output(row["input_output"], problem_id=key)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        except KeyError as error:
            raise ValueError(f"{where}: no {error}: give it, or the final answer as 'answer'") from error
    return problems


def load_solutions(path: Path, problems: Mapping[str, object]) -> list[tuple[Any, str]]:
    """Return (problem_id, response) of each solution, in the file's order; ValueError names a malformed line."""
    solutions = []
    for where, row in _read_rows(path, "--solutions", "problem_id", "response"):
        if str(row["problem_id"]) not in problems:
            raise ValueError(f"{where}: unknown problem_id {row['problem_id']!r}: no problem has it")
        if not isinstance(row["response"], str):
            raise ValueError(f"{where}: response is {type(row['response']).__name__}: give text")
        solutions.append((row["problem_id"], row["response"]))
    return solutions


def _read_rows(path: Path, option: str, *keys: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, object) for every line that is not blank; a file that ends in `.gz` is unpacked."""
    with _opened(path, option) as file:
        lines = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        try:
            for number, line in enumerate(io.TextIOWrapper(lines, encoding="utf-8-sig"), start=1):
                if not line.strip():
                    continue
                row = read_json(line, where := f"{path} line {number}")
                if not isinstance(row, dict):
                    raise ValueError(f"{where}: not an object: give one object a line")
                if missing := [key for key in keys if key not in row]:
                    raise ValueError(f"{where}: no {' and no '.join(map(repr, missing))}: give {', '.join(keys)}")
                yield where, row
        except (EOFError, UnicodeDecodeError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: {error}: give JSON lines in UTF-8, gzipped if the name ends in .gz") from error


def _opened(path: Path, option: str) -> BinaryIO:
    """Open a file; the ValueError of one that cannot be opened names the option that gave it."""
    try:
        return path.open("rb")
    except OSError as error:
        example = f"{option} {option.removeprefix('--')}.jsonl"
        raise ValueError(f"{path}: {error.strerror}: give a file of JSON lines, as in {example}") from error


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="online-refiner score",
        description="Score answers: programs by the APPS reward, or final answers.\n"
        "Example: online-refiner score --problems tasks.jsonl --solutions answers.jsonl",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    said = "JSON lines: problem_id, and input_output as in APPS or answer"
    add("--problems", type=Path, required=True, metavar="FILE", help=said)
    add("--solutions", type=Path, required=True, metavar="FILE", help="JSON lines: problem_id, response")
    said = "answers at a time (default: the number of cores)"
    add("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help=said)
    said = "seconds of one test, of all processors (default: %(default)s)"
    add("--timeout", type=float, default=Limits().test_s, metavar="S", help=said)
    add("--allow-unsafe", action="store_true", help="run where the machine isolates nothing")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
