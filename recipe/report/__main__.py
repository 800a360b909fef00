"""Make one page of any runs: `python scripts/report.py RUN_DIR... [--output FOLDER|PAGE.html]`.

The page (self-contained) has the curves, the costs, token-wise cross-entropies and a searchable table of refinements;
each figure is also written as PNG beside it, and the curves' numbers as CSV. Runs with the same settings but for the
seed are one arm. A run that is still going can be reported. What each part shows: docs/report.md.
"""

import argparse
import sys
from pathlib import Path

from recipe.report.arms import group
from recipe.report.runs import read_runs

PAGE = "report.html"


def named_arm(text: str) -> tuple[str, list[Path]]:
    """Parse NAME=DIR,DIR."""
    name, _, folders = text.partition("=")
    paths = [Path(folder) for folder in folders.split(",") if folder]
    if not name or not paths:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR[,DIR...]")
    return name, paths


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Make one page of curves, costs and refinements of any runs.")
    parser.add_argument("run_dirs", type=Path, nargs="*", metavar="RUN_DIR")
    parser.add_argument(
        "--arm", type=named_arm, action="append", default=[], metavar="NAME=DIR,DIR", help="these runs are one arm"
    )
    parser.add_argument("--output", type=Path, help=f"folder or .html file (default: report/{PAGE} in the first run)")
    parser.add_argument("--preface", type=Path, metavar="FILE.md", help="Markdown to open the page with")
    parser.add_argument("--rows", type=int, default=3000, help="refinements in the table at most (default: 3000)")
    arguments = parser.parse_args()
    if not arguments.run_dirs and not arguments.arm:
        parser.error("name at least one run directory")
    return arguments


def main() -> int:
    """Write the report; exit status 2 if there is nothing to show."""
    arguments = parse()
    folders = [*arguments.run_dirs, *(path for _, paths in arguments.arm for path in paths)]
    output = arguments.output or folders[0] / "report"
    page = output if output.suffix == ".html" else output / PAGE
    try:
        runs, left_out = read_runs(folders)
        arms = group(runs, dict(arguments.arm))
        for line in left_out:
            print(f"left out: {line}" if runs else f"error: {line}", file=sys.stderr)
        if not runs:
            return 2
        # Here: a wrong folder need not wait for matplotlib.
        try:
            from recipe.report.page import Report, write
        except ModuleNotFoundError as error:
            raise ValueError(f"{error}; figures need: pip install 'verl-online-refiner[report]'") from error

        preface = arguments.preface
        write(Report(runs=runs, arms=arms, left_out=left_out, num_rows=arguments.rows, preface=preface), page)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
