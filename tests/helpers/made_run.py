"""Run directories as the run writes them, of any size and with any texts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from recipe.runs.files import TOKENS, Records, RunDir

TEXTS = ("The answer is 3.\n", "The answer is 4.\n")
"""A response and its refinement."""


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return as much of a resolved config as the report reads; changes by dotted keys with ``__`` for the dot."""
    found: dict[str, Any] = {
        "run_dir": str(folder),
        "actor_rollout_ref": {"rollout": {"n": 2}},
        "algorithm": {"adv_estimator": "grpo"},
        "constraint": {"mode": "sft", "rescue_dead_groups": False},
        "data": {"seed": 1, "train_batch_size": 2, "max_response_length": 48},
        "refiner": {"template": "general", "placement": "colocated", "skip_reward_at_least": None},
        "trainer": {"experiment_name": folder.name, "total_training_steps": 8},
        "records": {"path": f"{folder}/refinements"},
    }
    for name, value in changes.items():
        block, _, key = name.partition("__")
        found[block][key] = value
    return found


def metrics(step: int, seed: float = 0.0) -> dict[str, float]:
    """Return a step's metrics."""
    return {
        "reward/mean": -0.5 + 0.1 * step + seed,
        "reward/zero_std_groups": 0.25,
        "refiner/num_rollouts": 4,
        "refiner/num_attempted": 3,
        "refiner/num_accepted": 2,
        "refiner/improvement_ratio": 0.5,
        "refiner/failed/truncated": 1,
        "refiner/skipped/max_reward": 1,
        "refiner/exposed_s": 2.0,
        "constraint/cross_entropy_accepted": 1.0 / step,
        "kl_ref/k3": 0.01 * step,
        "val-core/mini_apps/reward/mean@1": 0.1 * step + seed,
        "tokens/rollout": 100,
        "tokens/refine": 50,
        "timing_s/step": 10.0,
        "timing_s/gen": 3.0,
        "timing_s/refine": 2.0,
        "timing_s/update_actor": 4.0,
    }


def record(key: str, **changes: Any) -> dict[str, Any]:
    """Return what is recorded of a rollout."""
    return {
        "key": key,
        "prompt": [{"role": "user", "content": "1 + 3?"}],
        "response": TEXTS[0],
        "refined": TEXTS[1],
        "reward": 0.0,
        "refined_reward": 1.0,
        "verdict": "accepted",
        "feedback": "It is not 3.",
        "detail": "",
        "data_source": "sums",
        **changes,
    }


def tokens(key: str, words: Sequence[str] = ("The answer", " is", " 3")) -> dict[str, Any]:
    """Return the numbers by token of a rollout: its last token is charged, and replaced."""
    number, last = len(words), len(words) - 1
    kept = [1] * last + [0]
    return {
        "key": key,
        "eta": 0.001,
        "response": {
            "tokens": list(words),
            "log_probs": [-0.5 * t for t in range(number)],
            "charged": [0.0] * last + [-3.25],
            "counterparts": [-1] * last + [last],
            "kept": kept,
        },
        "refined": {
            "tokens": [*words[:-1], " 4"],
            "log_probs": [-0.25] * last + [-3.25],
            "weights": None,
            "kept": kept,
        },
    }


def make_run(
    folder: Path, num_steps: int = 3, *, seed: int = 1, records: Sequence[dict[str, Any]] | None = None, **changes: Any
) -> Path:
    """Write a run: two prompts a step, two responses each; of the first response the numbers by token too."""
    run_dir = RunDir(folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config(folder, data__seed=seed, **changes)))
    for step in range(1, num_steps + 1):
        run_dir.write_metrics(step, metrics(step, 0.02 * seed))
        cut = {"refined": None, "refined_reward": None, "verdict": "truncated", "detail": "The answ"}
        solved = {"refined": None, "refined_reward": None, "verdict": "max_reward", "reward": 1.0}
        default = [record("a_0_0"), record("a_1_0", **cut), record("b_0_0", reward=-1.0), record("b_1_0", **solved)]
        Records(f"{folder}/refinements").write(step, "w0", default if records is None else records)
        first = (default if records is None else list(records))[0]["key"]
        Records(f"{folder}/refinements/{TOKENS}").write(step, "w0", [tokens(first)])
    return folder


def half_a_line(file: Path) -> None:
    """Add what a writer has come to that is in the middle of a line."""
    with file.open("a") as lines:
        lines.write(json.dumps(metrics(99))[:40])
