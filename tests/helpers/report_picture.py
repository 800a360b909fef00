"""Draw the README's pictures: the page on a committed run of the quickstart, as Debian's chromium shows it.

    python tests/helpers/report_picture.py

It writes ``docs/report.png``, what the numbers say and the first curves, and ``docs/report_tokens.png``, a refinement.
"""

import sys
import tempfile
from pathlib import Path

from browser import browsing

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))


def main() -> None:
    """Write both."""
    from recipe.report.page import write_page
    from recipe.report.reading import read_runs

    run = REPOSITORY / "tests" / "unit" / "report" / "runs" / "quickstart"
    with tempfile.TemporaryDirectory() as folder, browsing() as page:
        file = Path(folder) / "report.html"
        file.write_bytes(write_page(read_runs([str(run)])))
        page.resize(1280, 3600)
        page.open(file)
        page.draw("body", REPOSITORY / "docs" / "report.png", 1300)
        page.click("[name=words]")
        page.type("divisible_by_4")
        page.draw("#detail", REPOSITORY / "docs" / "report_tokens.png", 1100)


if __name__ == "__main__":
    main()
