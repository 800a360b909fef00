"""Draw the README's pictures: the pages on two committed runs of the quickstart, as Debian's chromium shows them.

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

    runs = REPOSITORY / "tests" / "unit" / "report" / "runs"
    with tempfile.TemporaryDirectory() as folder, browsing() as page:
        page.resize(1280, 3600)
        for name, selector, height, picture in (
            ("quickstart", "body", 1300, "report.png"),
            ("begun", "#detail", 1100, "report_tokens.png"),
        ):
            file = Path(folder) / f"{name}.html"
            file.write_bytes(write_page(read_runs([str(runs / name)])))
            page.open(file)
            page.draw(selector, REPOSITORY / "docs" / picture, height)


if __name__ == "__main__":
    main()
