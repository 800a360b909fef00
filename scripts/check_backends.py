"""Compare what each backend computes with Hugging Face and autograd, on the CPU.

    python scripts/check_backends.py [LAYOUT...]

Every layout of ranks trains a tiny random Llama on 23 small batches: all modes; none, some and all refinements
accepted; fixed and dynamic micro-batches. ``log_prob_diff`` is the largest difference of log pi(a'_t) in nats,
``param_diff`` that of a parameter after training, ``cross_entropy_diff`` that of the metric in nats; in every batch
some parameter changes by ``smallest_change`` or more. The last line is a JSON object with ``layouts``, by name. The
exit status is 1 if a difference is above 1e-5.
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
from recipe.cpu_platform.launch import enter

LIMIT = 1e-5
SIZES = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260}
"""Layers for two virtual stages of two pipeline stages; the others for two tensor-parallel ranks."""
INITIALIZER_RANGE = 0.1
"""Small, so that float32 has digits to spare."""


def reference_of(case: Any, model: Any) -> dict[str, Any]:
    """Return what plain loops find for a case, and the initial parameters' largest change."""
    from recipe.backend_check import reference

    log_probs = [value for row in case.rows for value in reference.refined_log_probs(model, row)]
    trained = copy.deepcopy(model)
    cross_entropy = reference.train(trained, case)
    parameters = {name: value.detach() for name, value in trained.named_parameters()}
    change = largest_difference(parameters, dict(model.named_parameters()))
    return {"log_probs": log_probs, "cross_entropy": cross_entropy, "parameters": parameters, "change": change}


def largest_difference(some: dict[str, Any], others: dict[str, Any]) -> float:
    """Return the largest difference between tensors of the same name."""
    assert some.keys() == others.keys(), some.keys() ^ others.keys()
    return largest((some[name] - others[name]).abs().max() for name in some)


def largest(numbers: Iterable[Any]) -> float:
    """Return the largest number; NaN if there is one."""
    import torch

    return torch.tensor([float(number) for number in numbers]).max().item()


def compare(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Return the largest differences of one case."""
    log_probs = [value for row in found["log_probs"] for value in row]
    metric = found["metrics"].get("sft_cross_entropy", [0.0])
    return {
        "log_prob_diff": largest(abs(one - other) for one, other in zip(log_probs, expected["log_probs"], strict=True)),
        "param_diff": largest_difference(found["parameters"], expected["parameters"]),
        "cross_entropy_diff": abs(sum(metric) / len(metric) - expected["cross_entropy"]),
    }


def main() -> int:
    """Run the layouts, print a table and the JSON object, and return the exit status."""
    from recipe.backend_check import ranks
    from recipe.backend_check.cases import all_cases
    from recipe.backend_check.tiny_model import tiny_llama, tiny_tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", metavar="LAYOUT", help=f"of {', '.join(ranks.LAYOUTS)}; all by default")
    names = parser.parse_args().layouts or list(ranks.LAYOUTS)
    if unknown := sorted(set(names) - set(ranks.LAYOUTS)):
        parser.error(f"{unknown[0]} is no layout")
    tokenizer = tiny_tokenizer()
    model = tiny_llama(tokenizer, **SIZES, initializer_range=INITIALIZER_RANGE)
    cases = all_cases(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        found = {name: ranks.run(ranks.LAYOUTS[name], Path(folder), cases) for name in names}
    expected = [reference_of(case, model) for case in cases]
    table = {}
    for name, results in found.items():
        rows = [compare(one, other) for one, other in zip(results, expected, strict=True)]
        table[name] = {key: largest(row[key] for row in rows) for key in rows[0]}
        print("| {} | {} |".format(name, " | ".join(f"{value:.1e}" for value in table[name].values())))
    change = min(one["change"] for one in expected)
    print(json.dumps({"layouts": table, "num_cases": len(cases), "smallest_change": change}))
    return int(not all(value <= LIMIT for row in table.values() for value in row.values()))


if __name__ == "__main__":
    enter({**ENVIRONMENT, "OMP_NUM_THREADS": "1"})
    warnings.filterwarnings("ignore")
    os.environ["PYTHONWARNINGS"] = "ignore"
    sys.exit(main())
