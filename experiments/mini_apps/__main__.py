"""Write the problems in verl's schema: `python -m experiments.mini_apps [--level easy] --output DIR`.

``recipe/quickstart`` is what ``--level easy`` writes.
"""

import argparse
import json
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.mini_apps.family import LEVELS, Split
from experiments.mini_apps.generator import generate


def row_of(problem: dict[str, Any], index: int) -> dict[str, Any]:
    """Build a row from a problem of ``generate``, whose question says all."""
    problem_id = problem["problem_id"]
    (solution,) = json.loads(problem["solutions"])
    ground_truth = json.dumps({**json.loads(problem["input_output"]), "problem_id": problem_id})
    own = {key: problem[key] for key in ("family", "difficulty", "split")}
    return {
        "data_source": "mini_apps",
        "prompt": [{"role": "user", "content": problem["question"]}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {"problem_id": problem_id, **own, "solution": solution, "index": index},
    }


def main() -> None:
    """Write train.parquet and val.parquet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--level", choices=LEVELS, help="difficulty (default: all)")
    parser.add_argument("--output", type=Path, required=True, help="folder to write to; made if missing")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = [row_of(problem, index) for index, problem in enumerate(generate(arguments.level))]
    for split in get_args(Split):
        table = pa.Table.from_pylist([row for row in rows if row["extra_info"]["split"] == split])
        pq.write_table(table, arguments.output / f"{split}.parquet", compression="zstd")


if __name__ == "__main__":
    main()
