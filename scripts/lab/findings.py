"""Print every number of docs/results.md, from the committed metrics and the protocol.

python scripts/lab/findings.py [--protocol docs/results/lab.yaml]
"""

import argparse
from pathlib import Path

from recipe.lab import figure, findings, metrics, protocol
from recipe.report.figures import png

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> None:
    """Print the tables; draw the figure, if there are final runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", type=Path, default=FOLDER / "lab.yaml")
    path = parser.parse_args().protocol
    rules, runs = protocol.read(path), metrics.read(metrics.path_of(path, "final"))
    print(findings.page(rules, path))
    if runs:
        drawn = figure.outcomes(findings.outcomes_by_algorithm(rules, runs))
        path.with_name(f"{path.stem}_outcomes.png").write_bytes(png(drawn))


if __name__ == "__main__":
    main()
