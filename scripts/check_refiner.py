"""Can a model refine its own answers, and with which template? Run it before you train.

    python scripts/check_refiner.py --model DIR --data FILE.parquet --reward my_reward:compute_score general math

The model answers every problem of the file (verl's schema) at temperature 1, and then refines the answers below
--highest-reward, greedily, as in training. A way is a template (a name, or a file of your own) with what
`refiner.context` has, joined by `+`.

Prints first how often another answer to the same problem has a higher reward: a refiner that improves fewer only costs.
Then a Markdown table: shares with 95 % intervals, the difference to the first way, and tokens. Every refinement is
written to --output as JSON lines.
"""

import argparse
import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:1] = [str(Path(__file__).resolve().parents[1]), "."]

import numpy as np  # noqa: E402

from recipe.evaluation.generation import prepare_vllm  # noqa: E402


def main() -> None:
    """Answer, refine in every way, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ways", nargs="+", metavar="TEMPLATE[+CONTEXT...]")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True, nargs="+")
    parser.add_argument("--samples", type=int, default=8, help="answers to each problem")
    parser.add_argument("--seed", type=int, default=0, help="of the answers")
    parser.add_argument("--max-response-tokens", type=int, default=512)
    parser.add_argument("--max-new-tokens", type=int, default=512, help="of a refinement")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--highest-reward", type=float, default=1.0, help="answers with it are not refined")
    parser.add_argument(
        "--reward", default="reward.verl_reward:compute_score", help="MODULE:FUNCTION, as verl calls it"
    )
    parser.add_argument("--output", type=Path, default=Path("check_refiner.jsonl"))
    asyncio.run(compare(parser.parse_args()))


async def compare(arguments: argparse.Namespace) -> None:
    """Do it."""
    prepare_vllm()
    from datasets import load_dataset
    from transformers import AutoTokenizer

    from recipe.comparison import OUTCOMES, Bench, Engine, interval
    from refiner_worker.turn_end import read_turn_end

    module, _, function = arguments.reward.partition(":")
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    bench = Bench(
        engine=Engine(arguments.model, arguments.max_model_len, arguments.seed),
        tokenizer=tokenizer,
        turn_end=read_turn_end(arguments.model, tokenizer),
        reward=getattr(importlib.import_module(module), function),
        max_response_tokens=arguments.max_response_tokens,
        max_model_len=arguments.max_model_len,
    )
    rows = load_dataset("parquet", data_files=[str(file) for file in arguments.data], split="train")
    answers = (bench.answer(row, group, arguments.samples) for group, row in enumerate(rows))
    groups = await asyncio.gather(*answers)
    if bench.failed:
        print(f"{len(bench.failed)} answers have no reward and are left out, the first: {bench.failed[0]}")
    highest = arguments.highest_reward
    of = [(one, group) for group in groups for one in group if one.reward < highest]
    wrong, problems = [one for one, _ in of], np.array([int(one.group) for one, _ in of])
    print(f"{len(wrong)} of {sum(map(len, groups))} answers are refined, to {len(set(problems))} problems")
    if not wrong:
        raise SystemExit(f"nothing to refine: no reward is below --highest-reward, {highest:g}")
    others = (np.mean([other.reward > one.reward for other in group if other is not one]) for one, group in of)
    if arguments.samples > 1:
        print(f"Another answer has a higher reward: {np.mean(list(others)):.1%}")
    print()
    print("| way |", " | ".join(OUTCOMES), "| tokens read | written |\n|---|" + "---|" * (len(OUTCOMES) + 2))
    first: dict[str, np.ndarray] = {}
    with arguments.output.open("w") as file:
        for way in arguments.ways:
            template, *context = way.split("+")
            settings: dict[str, Any] = {"template": template, "context": context, "skip_reward_at_least": highest}
            refined = await bench.refine(groups, {**settings, "response_length": arguments.max_new_tokens})
            cells = []
            for name, holds in OUTCOMES.items():
                values = np.array([float(holds(*pair)) for pair in zip(wrong, refined, strict=True)])
                cells.append("{:.1%} ({:.1%} to {:.1%})".format(*interval(values, problems)))
                if name in first:
                    cells[-1] += ", {:+.1%} ({:+.1%} to {:+.1%})".format(*interval(values - first[name], problems))
                first.setdefault(name, values)
            tokens = (
                np.mean([getattr(one, f"num_{kind}_tokens") for one in refined]) for kind in ("prompt", "generated")
            )
            print(f"| `{way}` |", " | ".join(cells), "|", " | ".join(f"{mean:.0f}" for mean in tokens), "|", flush=True)
            for old, new in zip(wrong, refined, strict=True):
                texts = {"response": bench.tokenizer.decode(old.response_ids), "feedback": old.feedback}
                texts |= {"question": old.messages[-1]["content"], "refined": new.text, "verdict": new.verdict}
                line = {"way": way, "key": old.key, "reward": old.reward, "refined_reward": new.reward, **texts}
                file.write(json.dumps(line) + "\n")
    bench.engine.close()


if __name__ == "__main__":
    main()
