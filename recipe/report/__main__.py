"""Make one page of any runs: `python -m recipe.report RUN_DIR... [--output FOLDER|PAGE.html]`.

The page is self-contained: a table of the arms, curves, and a table of refinements to search. Runs with the same
settings but for the seed are one arm. A run that is still going can be reported. What each part shows: docs/report.md.
"""

import argparse
import sys
from pathlib import Path

from recipe.report.arms import group
from recipe.report.runs import read_runs

PAGE = "report.html"


def main() -> int:
    """Write the report; exit status 2 if there is nothing to show."""
    parser = argparse.ArgumentParser(description="Make one page of curves and refinements of any runs.")
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--output", type=Path, help=f"folder or .html file (default: report/{PAGE} in the first run)")
    parser.add_argument("--rows", type=int, default=3000, help="refinements in the table at most (default: 3000)")
    arguments = parser.parse_args()
    output = arguments.output or arguments.run_dirs[0] / "report"
    page = output if output.suffix == ".html" else output / PAGE
    try:
        runs, left_out = read_runs(arguments.run_dirs)
        for line in left_out:
            print(f"left out: {line}" if runs else f"error: {line}", file=sys.stderr)
        if not runs:
            return 2
        # Imported here: a wrong folder need not wait for matplotlib.
        try:
            from recipe.report.page import write
        except ModuleNotFoundError as error:
            raise ValueError(f"{error}; figures need: pip install 'verl-online-refiner[report]'") from error
        write(group(runs), page, num_rows=arguments.rows)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
