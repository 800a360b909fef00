"""Make one page of any runs: `python scripts/report.py RUN_DIR... [--output DIR]`.

The page (report.html, self-contained) has the curves, the costs, token-wise cross-entropies and a searchable table of
refinements; each figure is also written as PNG. A run that is still going can be reported.
"""

import argparse
import sys
from pathlib import Path

# The script is run from a checkout as well as beside an installed package: then the packages lie one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipe.report.runs import read_run


def main() -> int:
    """Write the report; exit status 2 if a folder is no run."""
    parser = argparse.ArgumentParser(description="Make one page of curves, costs and refinements of any runs.")
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--output", type=Path, help="folder to write to (default: report in the first run directory)")
    parser.add_argument("--rows", type=int, default=300, help="refinements in the table at most (default: 300)")
    arguments = parser.parse_args()
    try:
        runs = [read_run(path) for path in arguments.run_dirs]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    from recipe.report.page import write_report  # here: a wrong folder need not wait for matplotlib

    page, *_ = write_report(runs, arguments.output or arguments.run_dirs[0] / "report", arguments.rows)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
