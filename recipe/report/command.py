"""``online-refiner report RUN_DIR [RUN_DIR ...] [--output PAGE]``: write a page on one or several runs."""

import argparse
import sys
from pathlib import Path

from recipe.report.page import write_page
from recipe.report.reading import read_runs


def main(argv: list[str] | None = None) -> int:
    """Write the page and return an exit status."""
    parser = argparse.ArgumentParser(
        prog="online-refiner report",
        description="Write one HTML file on one or several runs: what their numbers say, curves,\n"
        "refinements and their tokens. It opens without a network. Runs that differ only\n"
        "in their seed become one curve with its range.\n"
        "Example: online-refiner report runs/online_refiner/quickstart",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="a run's run_dir, also while it runs; or a URL")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PAGE",
        help="the file to write; default: report.html in RUN_DIR, or here for several runs or a URL",
    )
    arguments = parser.parse_args(argv)
    runs = arguments.runs
    here = len(runs) > 1 or "://" in runs[0]
    output = arguments.output or (Path() if here else Path(runs[0])) / "report.html"
    try:
        page = write_page(read_runs(runs))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(page)
    except (OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{output}: {len(page) / 1e6:.1f} MB; open it in a browser")
    return 0
