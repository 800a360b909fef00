"""Compare what each backend computes with Hugging Face and autograd, on the CPU.

    python tests/oracle/check_backends.py [--model MODEL] [--stride N] [LAYOUT...]

Every layout of ranks trains a tiny random model on 21 small batches: all modes; none, some and all refinements
accepted; fixed and dynamic micro-batches. ``log_prob_diff`` is the largest difference of log pi(a'_t) in nats, by the
pass over a' and in the update's first pass, and of what the tokens of a are charged for; ``param_diff`` that of a
parameter after training, ``cross_entropy_diff`` that of the metric in nats; in every batch some parameter changes by
``smallest_change`` or more. The last line is a JSON object with ``layouts``, by name. The exit status is 1 if a
difference is above 1e-5.
"""

import argparse
import copy
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recipe.cpu_platform import ENVIRONMENT
from recipe.preload.launch import enter

LIMIT = 1e-5


def largest(numbers: Iterable[Any]) -> float:
    """Return the largest number; NaN if there is one."""
    import torch

    return torch.tensor([float(number) for number in numbers]).max().item()


def difference(some: Any, others: Any) -> float:
    """Return the largest difference between numbers, in lists or dicts of the same shape."""
    if isinstance(some, dict):
        assert some.keys() == others.keys(), some.keys() ^ others.keys()
        return largest(difference(some[name], others[name]) for name in some)
    if isinstance(some, float):
        return abs(some - others)
    if hasattr(some, "abs"):
        return (some - others).abs().max().item()
    return largest(difference(*pair) for pair in zip(some, others, strict=True))


def as_saved(model: Any) -> dict[str, Any]:
    """Return a model's parameters by their names; those of experts by the names in files, where each has its own."""
    from transformers.core_model_loading import revert_weight_conversion

    named = {name: one.detach() for name, one in model.named_parameters()}
    return dict(revert_weight_conversion(model, named)) if hasattr(model.config, "num_experts") else named


def main() -> int:
    """Run the layouts, print a table and the JSON object, and return the exit status."""
    import batches
    import ranks
    from models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=f"of {', '.join(ranks.LAYOUTS)}; all by default")
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--stride", type=int, default=1, help="check every n-th batch (default: 1, all of them)")
    arguments = parser.parse_args()
    names = arguments.layouts or list(ranks.LAYOUTS)
    if unknown := sorted(set(names) - set(ranks.LAYOUTS)):
        parser.error(f"{unknown[0]} is no layout")
    make_tokenizer, make_model = MODELS[arguments.model]
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    every = batches.all_batches(model)[:: arguments.stride]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        found = {name: ranks.run(name, Path(folder), every) for name in names}
    initial = as_saved(model)
    table: dict[str, dict[str, float]] = {name: {} for name in names}
    changes = []
    for number, batch in enumerate(every):
        trained = copy.deepcopy(model)
        cross_entropy = batches.train(trained, batch)
        expected = as_saved(trained)
        changes.append(difference(expected, initial))
        for name, row in table.items():
            one = found[name][number]
            metric = one["metrics"].get("sft_cross_entropy", [0.0])
            charged = difference(one["refine_charged"], [each["charged"] for each in batch.rows])
            log_probs = difference(one["refine_log_probs"], [each["log_probs"] for each in batch.rows])
            used = {
                n + 1: each
                for n, each in enumerate(batch.rows)
                if batch.token_weights and each["columns"]["refine_used"]
            }
            seen = difference(one["seen"], {n: each["log_probs"] for n, each in used.items()}) if used else 0.0
            differences = {
                "log_prob_diff": largest([log_probs, charged, seen]),
                "param_diff": difference(one["parameters"], expected),
                "cross_entropy_diff": abs(sum(metric) / len(metric) - cross_entropy),
            }
            row |= {key: largest([value, row.get(key, 0.0)]) for key, value in differences.items()}
    for name, row in table.items():
        print("| {} | {} |".format(name, " | ".join(f"{value:.1e}" for value in row.values())))
    print(json.dumps({"layouts": table, "num_cases": len(every), "smallest_change": min(changes)}))
    return int(not all(value <= LIMIT for row in table.values() for value in row.values()))


if __name__ == "__main__":
    repository = Path(__file__).parents[2]
    folders = [str(repository / "examples" / "own_constraint"), str(repository / "tests" / "helpers")]
    sys.path[:0] = folders
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))  # for ranks
    enter({**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    warnings.filterwarnings("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    sys.exit(main())
