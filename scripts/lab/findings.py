"""Print every number of docs/results.md, from the committed metrics and the protocol.

python scripts/lab/findings.py [--protocol docs/results/lab.yaml]
"""

import argparse
from pathlib import Path

from recipe.lab import findings, metrics, protocol

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", type=Path, default=FOLDER / "lab.yaml")
    arguments = parser.parse_args()
    rules = protocol.read(arguments.protocol)
    print(findings.tables(rules, metrics.read(metrics.path_of(arguments.protocol, "final"))))


if __name__ == "__main__":
    main()
