"""Draw the answers that every way refines: ``python -m experiments.refiners.draw --model DIR --output FILE``.

Writes problems of ``experiments.mini_apps`` in verl's schema, with the model's answers in a column ``responses``, which
``online-refiner check`` takes in place of answers of its own. ``results/refiners/answers.parquet`` are 78 of its 128
problems, taken in a random order until 152 answers were wrong.
"""

import argparse
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.mini_apps.__main__ import row_of
from experiments.mini_apps.generator import generate
from recipe.cpu_platform import prepare_vllm


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_vllm()
    from vllm import LLM, SamplingParams

    from recipe.refiner_check import choose

    rows = [row_of(problem, index) for index, problem in enumerate(generate())]
    rows = [rows[index] for index in choose(len(rows), arguments.problems, arguments.seed)]
    llm = LLM(arguments.model, dtype=arguments.dtype, max_model_len=2048, enforce_eager=True, seed=arguments.seed)
    sampling = SamplingParams(n=arguments.samples, temperature=1.0, max_tokens=arguments.max_tokens)
    outputs = llm.chat([row["prompt"] for row in rows], sampling)
    for row, output in zip(rows, outputs, strict=True):
        row["responses"] = [one.text for one in output.outputs]
    pq.write_table(pa.Table.from_pylist(rows), arguments.output, compression="zstd")


if __name__ == "__main__":
    main()
