"""Print every number of docs/results.md, from the committed metrics and the protocol.

    python scripts/lab/findings.py [docs/results/final.csv] [--protocol docs/results/protocol.yaml]

The CSV is the `curves.csv` that a report of the final runs writes beside its page.
"""

import argparse
from pathlib import Path

from recipe.lab import findings, protocol

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("metrics", type=Path, nargs="?", default=FOLDER / "final.csv")
    parser.add_argument("--protocol", type=Path, default=FOLDER / "protocol.yaml")
    arguments = parser.parse_args()
    print(findings.tables(protocol.read(arguments.protocol), findings.read(arguments.metrics)))


if __name__ == "__main__":
    main()
