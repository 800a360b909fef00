"""Draw the answers that every way refines: ``python -m experiments.refiners.draw --model DIR --output FILE``.

Writes problems in verl's schema, with the model's answers in a column ``responses``, which ``online-refiner check``
takes in place of answers of its own. So was made:

- ``results/refiners/answers.parquet``: 78 of the 128 problems of ``experiments.mini_apps``, taken in a random order
  until 152 answers were wrong.
- ``results/refiners/unsolved.parquet`` (``--steps 3 --samples 4 --unsolved 38 --seed 1``), for ``PROTOCOL.md``: those
  45 of 64 problems of ``chains`` whose answers are all wrong. As many further answers, which no choice has seen, are in
  ``further_responses``, and their rewards in ``further``.
"""

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from experiments.mini_apps.__main__ import row_of
from experiments.mini_apps.generator import generate
from experiments.refiners import chains
from recipe.cpu_platform import prepare_vllm
from reward.verl_reward import compute_score

HIGHEST = 1.0
AT_ONCE = 16
"""The number of problems that are answered at a time, until enough are unsolved."""


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--steps", type=int, help="of problems of chains (default: problems of mini_apps)")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--unsolved", type=int, help="keep at least so many unsolved problems, with further answers")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    prepare_vllm()
    from vllm import LLM, SamplingParams

    from recipe.offline.inputs import choose

    if arguments.steps is None:
        rows = [row_of(problem, index) for index, problem in enumerate(generate())]
        rows = [rows[index] for index in choose(len(rows), arguments.problems, arguments.seed)]
    else:
        problems = chains.generate(arguments.problems, seed=arguments.seed, length=arguments.steps)
        rows = [row_of(problem, index) for index, problem in enumerate(problems)]
    settings = {"dtype": arguments.dtype, "max_model_len": 2048, "enforce_eager": True, "seed": arguments.seed}
    llm = LLM(arguments.model, kv_cache_memory_bytes=1 << 30, **settings)

    def draw(rows: list[dict[str, Any]], number: int) -> list[list[str]]:
        sampling = SamplingParams(
            n=number,
            temperature=1.0,
            max_tokens=arguments.max_tokens,
            stop=None if arguments.steps is None else "\n```\n",
            include_stop_str_in_output=True,
        )
        return [[one.text for one in output.outputs] for output in llm.chat([row["prompt"] for row in rows], sampling)]

    if not arguments.unsolved:
        rows = [{**row, "responses": own} for row, own in zip(rows, draw(rows, arguments.samples), strict=True)]
    else:
        kept, num_drawn = list[dict[str, Any]](), 0
        while num_drawn < len(rows) and len(kept) < arguments.unsolved:
            some = rows[num_drawn : num_drawn + AT_ONCE]
            num_drawn += len(some)
            for row, own in zip(some, draw(some, arguments.samples), strict=True):
                if max(rewards(row, own)) < HIGHEST:
                    kept.append({**row, "responses": own})
            print(f"{len(kept)} of {num_drawn} problems are solved by none of {arguments.samples} answers", flush=True)
        further = draw(kept, arguments.samples)
        pairs = zip(kept, further, strict=True)
        rows = [{**row, "further": rewards(row, own), "further_responses": own} for row, own in pairs]
    pq.write_table(pa.Table.from_pylist(rows), arguments.output, compression="zstd")


def rewards(row: dict[str, Any], answers: list[str]) -> list[float]:
    """Return the rewards of answers to a row."""

    async def all_of_them() -> list[float]:
        truth = row["reward_model"]["ground_truth"]
        said = (compute_score(row["data_source"], text, truth, row["extra_info"]) for text in answers)
        return [float(one["score"] or 0.0) for one in await asyncio.gather(*said)]

    return asyncio.run(all_of_them())


if __name__ == "__main__":
    main()
